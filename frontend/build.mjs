// Builds the one asset that ships in the wheel. `--check` compares it with what is committed, `--tests` bundles the tests.
import { build } from "esbuild";
import { readFileSync, readdirSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const asset = join(here, "../src/floatlens/explorer/assets/explorer.js");
const common = { bundle: true, format: "esm", charset: "ascii", loader: { ".css": "text" }, absWorkingDir: here, logLevel: "warning" };

if (process.argv.includes("--tests")) {
  rmSync(join(here, "build"), { recursive: true, force: true });
  const entryPoints = readdirSync(join(here, "test")).filter((name) => name.endsWith(".test.ts")).map((name) => `test/${name}`);
  await build({ ...common, entryPoints, outdir: "build", platform: "node", external: ["node:*"], outExtension: { ".js": ".mjs" } });
} else {
  const check = process.argv.includes("--check");
  const made = await build({
    ...common,
    entryPoints: ["src/main.ts"],
    outfile: asset,
    minify: true,
    target: "es2022",
    legalComments: "none",
    banner: { js: "// FloatLens explorer; built by `make explorer` from frontend/src. Holds d3 modules, (c) Mike Bostock, ISC licence." },
    write: !check,
  });
  if (check && made.outputFiles[0].text !== readFileSync(asset, "utf8")) {
    console.error("the committed explorer.js is not what frontend/src builds; run `make explorer` and commit it");
    process.exit(1);
  }
}
