import assert from "node:assert/strict";
import { test } from "node:test";
import { asCommand, asPython, literal, quoted } from "../src/code.ts";
import { decode, type RawFilm } from "../src/film.ts";
import { small, STATE } from "./films.ts";

const REQUEST = {
  revision: "",
  built_from: { passages: [{ title: "Ada", text: "She's here.", gold: false }, { title: "", text: "It rains.", gold: true }], order: "last" },
  settings: { max_new_tokens: 2, seed: 0, steps: 2 },
};
const film = (change: Partial<RawFilm> = {}) => decode(small({ request: REQUEST, ...change }));
const text = (made: { text: string } | { reason: string }) => ("text" in made ? made.text : made.reason);

test("values are Python's own, strings with their escapes", () => {
  assert.equal(literal({ a: [1, null, true, false] }), '{"a": [1, None, True, False]}');
  assert.equal(literal('say "no"\n\u0007\ud800'), '"say \\"no\\"\\n\\u0007\\ud800"');
});

test("a shell reads a word as it is", () => {
  assert.equal(quoted("tiny-mdm"), "tiny-mdm");
  assert.equal(quoted("it's $HOME"), "'it'\\''s $HOME'");
  assert.equal(quoted(""), "''");
});

test("one film is one trace, opened where the reader is", () => {
  const state = { ...STATE, step: 1, layer: 1, pin: { panel: 0, position: 3 }, rule: "top(n=1)" };
  assert.equal(
    text(asPython([film()], state)),
    `import floatlens as fl

lens = fl.load("small")
question = "Who?"
passages = [
    "Ada: She's here.",
    "It rains.",
]
trace = lens.trace(question, passages, gold=[1], max_new_tokens=2, seed=0, steps=2)
trace.explore(rules=["first", "top(n=1)"], state={"step": 1, "layer": 1, "rule": "top(n=1)", "pin": {"panel": 0, "position": 3}})
`,
  );
  assert.equal(
    text(asCommand([film()], state)),
    `floatlens trace small --prompt 'Who?' --passage 'Ada: She'\\''s here.' --passage 'It rains.' --gold 1 --max-new-tokens 2 --seed 0 --steps 2 --out run
floatlens explore run
`,
  );
});

test("what two films have in common is written once", () => {
  const made = text(asPython([film(), film({ interventions: ["mask-anchors(rule=top(n=1))"] })], STATE));
  assert.deepEqual(
    made.split("\n").filter((line) => /lens|question =|passages =/.test(line)),
    [
      "import floatlens as fl",
      'lens = fl.load("small")',
      'question = "Who?"',
      "passages = [",
      "first = lens.trace(question, passages, gold=[1], max_new_tokens=2, seed=0, steps=2)",
      'with lens.intervene("mask-anchors(rule=top(n=1))"):',
      "    second = lens.trace(question, passages, gold=[1], max_new_tokens=2, seed=0, steps=2)",
    ],
  );
  const commands = text(asCommand([film(), film({ interventions: ["mask-anchors(rule=top(n=1))"] })], STATE)).split("\n");
  assert.match(commands[1], / --intervention 'mask-anchors\(rule=top\(n=1\)\)' --out runs\/2$/);
  assert.equal(commands[2], "floatlens explore runs");
});

test("attention of a token needs matrices", () => {
  const state = { ...STATE, pin: { panel: 0, position: 1 }, direction: "to" as const };
  assert.match(text(asPython([film()], state)), /matrices=\["attention_mean"\]/);
  assert.match(text(asCommand([film()], state)), /--matrices attention_mean/);
});

test("a prompt that no question builds is given by its ids, and has no command", () => {
  const raw = film({ request: { ...REQUEST, built_from: null } });
  assert.match(text(asPython([raw], STATE)), /ids = \[0, 1\]\ntrace = lens\.trace\(ids, max_new_tokens=2/);
  assert.ok("reason" in asCommand([raw], STATE));
  const first = film({ request: { ...REQUEST, built_from: { ...REQUEST.built_from, order: "first" } } });
  assert.match(text(asPython([first], STATE)), /prompt = lens\.prompt\(question, passages, gold=\[1\], order="first"\)\ntrace = lens\.trace\(prompt, /);
  assert.ok("reason" in asCommand([first], STATE));
});

test("a setting without an option, and a film that says nothing, are named", () => {
  const cfg = film({ request: { ...REQUEST, settings: { max_new_tokens: 2, seed: 0, cfg_scale: 1.5 } } });
  assert.match(text(asCommand([cfg], STATE)), /no option for the setting cfg_scale/);
  assert.match(text(asPython([cfg], STATE)), /cfg_scale=1\.5/);
  assert.ok("reason" in asPython([decode(small())], STATE));
});
