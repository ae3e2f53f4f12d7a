/** The films on the screen as one HTML file: the page that `floatlens.explorer.page` writes, made by the page itself. */

import type { RawFilm } from "./film.ts";
import type { State } from "./state.ts";

/** What a reader chose and a page can start with; not where the mouse is. */
export const KEPT = ["films", "step", "layer", "head", "rule", "colour", "pin", "direction", "speed"] as const;

export const kept = (state: State): Partial<State> => Object.fromEntries(KEPT.map((name) => [name, state[name]]));

const BANNER = "// FloatLens explorer"; // the first line of the built script
const STYLE = "html, body { margin: 0 } #explorer { display: grid; min-height: 100vh }";
const ESCAPES: Record<string, string> = { "<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029" };

/** JSON that may stand inside a script element: nothing in it can end the element or start another. */
export const escapeJson = (value: unknown): string => JSON.stringify(value).replace(/[<>&\u2028\u2029]/g, (sign) => ESCAPES[sign]);

export const escapeHtml = (text: string): string =>
  text.replace(/[&<>"']/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" })[sign]!);

/** The page's policy names script and style by their hashes. A page that is not from a safe place cannot compute them. */
async function policy(script: string): Promise<string> {
  if (!globalThis.crypto?.subtle) return "";
  const hash = async (text: string) => {
    const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
    return `'sha256-${btoa(String.fromCharCode(...digest))}'`;
  };
  const rules = `default-src 'none'; script-src ${await hash(script)}; style-src ${await hash(STYLE)}; base-uri 'none'`;
  return `<meta http-equiv="Content-Security-Policy" content="${escapeHtml(rules)}">\n`;
}

/** A whole page that needs nothing else. `script` is the source of the explorer. */
export async function standalone(films: RawFilm[], state: Partial<State>, script: string): Promise<string> {
  const end = "</" + "script>";
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
${await policy(script)}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>${escapeHtml(films[0]?.question || "FloatLens")}</title>
<style>${STYLE}</style>
</head>
<body>
<div id="explorer" data-floatlens-explorer="explorer-data"></div>
<script type="application/json" id="explorer-data">${escapeJson({ films, live: null, state })}${end}
<script type="module">${script}${end}
</body>
</html>
`;
}

/** The source of this script: inside the page, or where the page got it from. */
export async function ownSource(): Promise<string> {
  for (const script of document.querySelectorAll('script[type="module"]:not([src])'))
    if (script.textContent?.startsWith(BANNER)) return script.textContent;
  const answer = await fetch(import.meta.url);
  if (!answer.ok) throw new Error(`The explorer's script cannot be read: ${answer.status} ${answer.statusText}`);
  return answer.text();
}
