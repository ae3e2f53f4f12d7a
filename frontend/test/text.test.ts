import assert from "node:assert/strict";
import { test } from "node:test";
import { columnsFor } from "../src/heads.ts";
import { flow, tokenAt } from "../src/layout.ts";
import { level, levels, percent, table, ticks } from "../src/shade.ts";
import { spell } from "../src/words.ts";

const M = { width: 100, line: 20, space: 5, pad: 0, least: 1 };

test("a word of several tokens is not torn apart", () => {
  const words = [" one", " lov", "elace", " two"].map((piece) => spell(piece));
  const { slots } = flow(words, [40, 40, 30, 20], M);
  assert.deepEqual(slots.map((s) => s.y), [0, 20, 20, 20]);
  assert.equal(slots[1].x, 0);
});

test("a line end hangs in the margin and ends the line; two make a wider gap", () => {
  const words = [" one", "\n", " two", "\n\n", " three"].map((piece) => spell(piece));
  const { slots } = flow(words, [100, 10, 20, 10, 20], M);
  assert.equal(slots[1].y, 0);
  assert.equal(slots[2].y, 20);
  assert.ok(slots[4].y - slots[2].y > 20);
});

test("a token wider than the page is cut to it", () => {
  const { slots } = flow([spell(" long")], [400], M);
  assert.equal(slots[0].w, 100);
});

test("the token under a point", () => {
  const { slots } = flow([spell(" a"), spell(" b")], [10, 10], M);
  assert.equal(tokenAt(slots, 20, 18, 10), 1);
  assert.equal(tokenAt(slots, 20, 60, 10), -1);
});

test("nothing invisible stays so, and nothing can turn the line around", () => {
  assert.equal(spell("a\u200bb").text, "a\u27e8200b\u27e9b");
  assert.equal(spell("\u202eevil").text, "\u27e8202e\u27e9evil");
  assert.equal(spell("\u0301").text, "\u25cc\u0301");
  assert.equal(spell(" ").text, "\u00b7");
  assert.equal(spell("\n").text, "\u21b5");
  assert.equal(spell("<script>alert(1)</script>").text, "<script>alert(1)</script>");
  assert.equal(Array.from(spell("x".repeat(500)).text).length, 48);
  assert.equal(spell("<|mask|>", true).text, "mask");
  assert.equal(spell("\u05e9\u05dc\u05d5\u05dd").text, "\u05e9\u05dc\u05d5\u05dd");
});

test("more attention is never paler, and the quick way agrees with the slow one", () => {
  const values = Float32Array.from({ length: 4000 }, (_, i) => (i / 4000) ** 3);
  values[0] = NaN;
  const quick = levels(values, 500, 80, new Uint8Array(4000));
  for (let i = 1; i < 4000; i++) {
    assert.ok(Math.abs(quick[i] - level(values[i] * 500, 80)) <= 1, `${values[i]}`);
    assert.ok(quick[i] >= quick[i - 1]);
  }
  assert.equal(quick[0], 0);
  assert.equal(quick[3999], 255);
  assert.equal(table(500, 80), table(500, 80), "made once");
});

test("numbers as a person reads them", () => {
  assert.deepEqual([0.5, 0.0123, 0.00123, 0.00001, NaN].map(percent), ["50 %", "1.2 %", "0.12 %", "<0.01 %", "\u2013"]);
  assert.deepEqual(ticks(7), [1, 2, 5]);
});

test("heads fill their rows where they can", () => {
  assert.deepEqual([columnsFor(4, 8), columnsFor(32, 6), columnsFor(12, 5), columnsFor(7, 4)], [4, 4, 4, 4]);
});
