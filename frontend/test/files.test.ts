import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";
import { fileName } from "../src/exports.ts";
import { escapeJson, standalone } from "../src/standalone.ts";
import { escapeXml, SvgPen, type Ruler } from "../src/svg.ts";
import { small } from "./films.ts";

const RULER: Ruler = { width: (text) => 5 * text.length, drop: (baseline) => (baseline === "middle" ? 3 : 0) };
const END = "</" + "script>";

test("a page that was saved holds the films, and nothing of them is markup", async () => {
  const film = small({ question: `${END}<b>&"` });
  const page = await standalone([film], { step: 1 }, "// script");
  const data = /id="explorer-data">(.*?)<\/script>/s.exec(page)![1];
  assert.deepEqual(JSON.parse(data), { films: [film], live: null, state: { step: 1 } });
  assert.equal(page.split(END).length - 1, 2, "the data and the script");
  assert.ok(page.includes("<title>&lt;/script&gt;&lt;b&gt;&amp;&quot;</title>"));
});

test("its policy allows the script and the style by their hashes", async () => {
  const page = await standalone([small()], {}, "// \u00e9");
  const hash = (text: string) => createHash("sha256").update(text).digest("base64");
  const style = /<style>(.*?)<\/style>/s.exec(page)![1];
  const rules = `default-src 'none'; script-src 'sha256-${hash("// \u00e9")}'; style-src 'sha256-${hash(style)}'; base-uri 'none'`;
  assert.ok(page.includes(`content="${rules.replaceAll("'", "&#x27;")}"`));
});

test("line separators cannot end a line of the script", () => {
  assert.equal(escapeJson("\u2028<\u2029"), '"\\u2028\\u003c\\u2029"');
});

test("an SVG has what a canvas would show, in the order of drawing", () => {
  const pen = new SvgPen(RULER, "Sans");
  pen.fillStyle = "#123456";
  pen.fillRect(1, 2.005, 3, 4);
  pen.save();
  pen.translate(10, 20);
  pen.font = '600 12px Mono, "A & B"';
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText("a<b", 5, 6, 12);
  pen.restore();
  pen.globalAlpha = 0.5;
  pen.strokeStyle = "red";
  pen.beginPath();
  pen.moveTo(0, 0);
  pen.lineTo(1, 1);
  pen.stroke();
  const lines = pen.file(30.2, 40, "x & y").split("\n");
  assert.match(lines[1], /^<svg xmlns="http:\/\/www\.w3\.org\/2000\/svg" width="31" height="40" viewBox="0 0 31 40" font-family="Sans">$/);
  assert.deepEqual(lines.slice(2, -2), [
    "<title>x &amp; y</title>",
    '<rect x="1" y="2.01" width="3" height="4" fill="#123456"/>',
    '<g transform="translate(10 20)">',
    '<text x="5" y="9" font-size="12" font-weight="600" font-family="Mono, &quot;A &amp; B&quot;" text-anchor="middle" fill="#123456" textLength="12" lengthAdjust="spacingAndGlyphs" xml:space="preserve">a&lt;b</text>',
    "</g>",
    '<path d="M0 0L1 1" fill="none" stroke="red" stroke-width="1" opacity="0.5"/>',
  ]);
});

test("XML gets no character that it forbids", () => {
  assert.equal(escapeXml("a\u0000\ud800b\u{1f600}\uffff\n"), "a\ufffd\ufffdb\u{1f600}\ufffd\n");
});

test("a file is named by what it shows", () => {
  assert.equal(fileName("org/Model-8B", "Où est-il? <b>", "png"), "floatlens-org-model-8b-ou-est-il-b.png");
  assert.equal(fileName("m", "word ".repeat(40), "svg").length, 60 + 4);
  assert.equal(fileName("模型", "", "html"), "floatlens.html");
});
