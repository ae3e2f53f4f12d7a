import assert from "node:assert/strict";
import { test } from "node:test";
import { anchorPositions, attentionOf, changeOf, decode, half, isRevised, nearest, profile } from "../src/film.ts";
import { changeLevels } from "../src/shade.ts";
import { mapsOf } from "../src/state.ts";
import { linkLayer, linkPosition, linkStep } from "../src/link.ts";
import { halves, small } from "./films.ts";

test("halves are the numbers that IEEE 754 says", () => {
  // bits and values from the standard's own examples
  for (const [bits, value] of [[0x3c00, 1], [0xc000, -2], [0x7bff, 65504], [0x0400, 2 ** -14], [0x0001, 2 ** -24], [0x3555, 0.333251953125]])
    assert.equal(half(bits), value);
  assert.ok(Number.isNaN(half(0x7e00)));
  assert.equal(half(0x7c00), Infinity);
});

test("a film gives the attention of a step and layer, and the mean over layers", () => {
  const film = decode(small());
  assert.deepEqual([...profile(film, 1, 0, null)!], [0.125, 0.125, 0.5, 0.25]);
  assert.deepEqual([...profile(film, 0, null, null)!], [0.375, 0.375, 0.125, 0.125]);
  assert.equal(profile(film, 0, 0, 0), null, "heads were not kept");
  assert.equal(film.peak, 4, "the least peak, so that a flat film stays pale");
});

test("what changed since the step before: each position's key and value, or the attention of a layer", () => {
  const drift = halves([NaN, NaN, NaN, NaN, NaN, NaN, NaN, NaN, 0.5, 0.25, 0, 1, 0.25, 0.75, 0, 0.5], [2, 2, 4]);
  const film = decode(small({ drift, moved: halves([NaN, NaN, 0.25, 0.75], [2, 2]) }));
  assert.deepEqual([...changeOf(film, "drift", 1, 0)!], [0.5, 0.25, 0, 1]);
  assert.deepEqual([...changeOf(film, "drift", 1, null)!], [0.375, 0.5, 0, 0.75]);
  assert.deepEqual([...changeOf(film, "moved", 1, 1)!], [0.75, 0.75, 0.75, 0.75]);
  assert.deepEqual([...changeLevels(changeOf(film, "drift", 0, 0), new Uint8Array(4))], [0, 0, 0, 0], "nothing comes before the first step");
  assert.deepEqual([...changeLevels(changeOf(film, "drift", 1, 0), new Uint8Array(4))], [180, 128, 0, 255]);
  assert.equal(changeOf(decode(small()), "drift", 1, 0), null);
  assert.deepEqual([mapsOf([film]), mapsOf([decode(small())])], [["attention", "drift", "moved"], ["attention"]]);
});

test("a token is revised from its last commit on, if it was written before", () => {
  const film = decode({ ...small(), revised: [0, 0, 2, 0], committed_at: [-1, -1, 1, 0] });
  assert.deepEqual([0, 1].map((step) => isRevised(film, step, 2)), [false, true]);
  assert.equal(isRevised(film, 1, 3), false);
  assert.equal(isRevised(decode(small()), 1, 2), false, "samplers that never replace tokens say nothing");
});

test("anchors are the bits that came", () => {
  const film = decode(small());
  assert.deepEqual(anchorPositions(film, "top(n=1)", 1, 0), [2]);
  assert.deepEqual(anchorPositions(film, "top(n=1)", 1, 1), [3]);
  assert.deepEqual(anchorPositions(film, "top(n=1)", 1, null), [3]);
  assert.deepEqual(anchorPositions(film, "no such rule", 1, 0), []);
});

test("a single head is taken from the nearest step that was kept", () => {
  const values = [0.5, 0.25, 0.125, 0.125, 0.125, 0.5, 0.25, 0.125];
  const film = decode(small({ received_heads: halves(values, [1, 2, 1, 4]), head_steps: [1] }));
  assert.deepEqual([...profile(film, 0, 1, 0)!], values.slice(4));
  assert.equal(nearest([0, 4, 8], 6), 1);
  assert.equal(nearest([], 6), -1);
});

test("rows and columns of a kept matrix", () => {
  const matrix = Array.from({ length: 16 }, (_, i) => i / 16);
  const film = decode(small({ attention: halves([...matrix, ...matrix.map((v) => v / 2)], [1, 2, 4, 4]), attention_steps: [0] }));
  assert.deepEqual([...attentionOf(film, 0, 0, 1, "from")!], matrix.slice(4, 8));
  assert.deepEqual([...attentionOf(film, 0, 0, 1, "to")!], [1, 5, 9, 13].map((i) => i / 16));
  assert.deepEqual([...attentionOf(film, 0, null, 1, "to")!], [1, 5, 9, 13].map((i) => (i / 16) * 0.75));
});

test("a cursor stands at the same moment, depth and word in both films", () => {
  const left = decode(small());
  const right = decode(small({ model: "other", steps: [0, 1] }));
  assert.equal(linkPosition(left, right, 1), 1);
  assert.equal(linkStep(left, right, 1), 1);
  assert.equal(linkLayer(left, right, null), null);
  const other = decode(small({ vocabulary: { "0": "<s>", "1": "Ada", "2": "<m>", "3": "is", "4": "here" } }));
  assert.equal(linkPosition(left, other, 3), 3, "the same place in the answer, though the prompts differ");
});
