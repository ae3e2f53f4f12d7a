import assert from "node:assert/strict";
import { test } from "node:test";
import { decode } from "../src/film.ts";
import { linkTo, readLink, stateFor, writeLink } from "../src/fragment.ts";
import { halves, small, STATE } from "./films.ts";

const REQUEST = {
  load: {},
  prompt: null,
  replay: null,
  built_from: { passages: [{ title: "T & t", text: "a=1&b #2 é\n+", gold: true }, { title: "", text: "", gold: false }], order: "last" },
  settings: { max_new_tokens: 2, seed: 7, steps: 2 },
};
const FILMS = [decode(small()), decode(small({ model: "other", id: "x", interventions: ["soft-cap(cap=5)", "mask-anchors"] }))];
const SHOWN = { ...STATE, films: [1, 0], step: 1, layer: 1, head: null, pin: { panel: 1, position: 2 }, direction: "to" as const, rule: "top(n=1)", colour: "kind" as const };

test("a link leads back to the films and the place in them", () => {
  const link = linkTo("explorer", [FILMS[1], FILMS[0]], SHOWN, false);
  assert.equal(link.layer, 5, "layers have the model's own numbers");
  const read = readLink(`#${writeLink(link)}`);
  assert.deepEqual(read, link);
  const { films, step, layer, head, pin, direction, rule, colour, maps } = SHOWN;
  assert.deepEqual(stateFor(read!, FILMS), { films, step, layer, head, pin, direction, rule, colour, maps });
});

test("a link keeps what shades the maps, where it was recorded", () => {
  const link = linkTo("explorer", [FILMS[0]], { ...STATE, maps: "moved" }, false);
  const read = readLink(`#${writeLink(link)}`)!;
  assert.equal(read.maps, "moved");
  const shading = (films: typeof FILMS) => (stateFor(read, films) as { maps: string }).maps;
  assert.equal(shading([decode(small({ moved: halves([0.5, 0.25, 0.125, 0.5], [2, 2]) }))]), "moved");
  assert.equal(shading(FILMS), "attention", "no film here has it");
});

test("a link to a live run holds what was asked", () => {
  const film = decode(small({ request: REQUEST, question: "Who & what? #1" }));
  const link = linkTo("explorer", [film], STATE, true);
  assert.deepEqual(link.run, { passages: REQUEST.built_from.passages, max_new_tokens: 2, steps: 2, block_length: null, seed: 7 });
  assert.deepEqual(readLink(writeLink(link)), link);
});

test("fragments of other things are left alone", () => {
  for (const other of ["", "#", "#drift", "#explorer", "#model=x", "#explorer=films"]) assert.equal(readLink(other), null, other);
});

test("a link that nothing good wrote does no harm", () => {
  const link = readLink("#explorer=e&model=small&question=Who%3F&step=-1&layer=1e9&head=x&token=99999999999&panel=7&direction=up&colour=red&rule=none&maps=toString")!;
  assert.deepEqual([link.step, link.layer, link.head, link.token, link.panel, link.direction, link.colour, link.maps], [0, null, null, null, 0, null, "attention", "attention"]);
  assert.deepEqual(stateFor(link, FILMS), { films: [0], step: 0, layer: null, head: null, pin: null, direction: null, colour: "attention", maps: "attention" });
});

test("a film that is not here is named", () => {
  const link = readLink("#explorer=e&model=absent&question=Who%3F")!;
  assert.equal(stateFor(link, FILMS), "The link is for a film of absent that is not on this page.");
  assert.equal(typeof stateFor(readLink("#explorer=e&model=small&question=Why%3F")!, FILMS), "string", "another question");
  assert.equal(typeof stateFor(readLink("#explorer=e&model=other&question=Who%3F")!, FILMS), "string", "without its interventions");
});
