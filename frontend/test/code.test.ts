import assert from "node:assert/strict";
import { test } from "node:test";
import { asCommand, asPython, literal, quoted } from "../src/code.ts";
import { decode, type RawFilm } from "../src/film.ts";
import { small, STATE } from "./films.ts";

const REQUEST = {
  load: {},
  prompt: null,
  replay: null,
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
    `floatlens trace small --prompt 'Who?' --passage 'Ada: She'\\''s here.' --passage 'It rains.' --gold-at 2 --max-new-tokens 2 --seed 0 --steps 2 --out run
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
  assert.match(text(asCommand([film()], state)), /--record attention_mean/);
});

const IDS = { ids: [0, 1], tail: null, regions: [] as [string, number, number][], gold: [] };

test("a prompt that no text builds is given by its ids, and by its regions if it has some", () => {
  const raw = film({ request: { ...REQUEST, built_from: null, prompt: IDS } });
  assert.match(text(asPython([raw], STATE)), /ids = \[0, 1\]\ntrace = lens\.trace\(ids, max_new_tokens=2/);
  assert.match(text(asCommand([raw], STATE)), /^floatlens trace small --ids 0,1 --max-new-tokens 2 /);
  const named = film({ request: { ...REQUEST, built_from: null, prompt: { ...IDS, tail: [7, 9], regions: [["site", 0, 2]] } } });
  assert.match(text(asPython([named], STATE)), /lens\.trace\(fl\.Prompt\("", ids, \[fl\.Region\("site", 0, 2\)\], tail=\(7, 9,\)\), max_new/);
  assert.ok("reason" in asCommand([named], STATE));
});

test("a raw text and a text with masks are given as they were", () => {
  const raw = film({ request: { ...REQUEST, built_from: { text: "MKT" } } });
  assert.match(text(asPython([raw], STATE)), /text = "MKT"\ntrace = lens\.trace\(lens\.text_prompt\(text\), max_new_tokens=2/);
  assert.match(text(asCommand([raw], STATE)), /--text MKT --max-new-tokens 2/);
  const masks = film({ request: { ...REQUEST, built_from: { infill: "A [MASK]." }, settings: { seed: 3 } } });
  assert.match(text(asPython([masks], STATE)), /text = "A \[MASK\]\."\ntrace = lens\.infill\(text, seed=3\)/);
  assert.match(text(asCommand([masks], STATE)), /^floatlens trace small --text 'A \[MASK\]\.' --seed 3 --out run/);
});

test("a replay has its answer and its order", () => {
  const replay = { text: "Rusk" as string | null, ids: [5, 6], order: [[1], [0]] as string | number[][], regions: {} };
  const raw = (change = {}) => film({ request: { ...REQUEST, settings: {}, replay: { ...replay, ...change } } });
  assert.match(text(asPython([raw()], STATE)), /prompt = lens\.prompt\(question, passages, gold=\[1\]\)\nanswer = "Rusk"\ntrace = lens\.replay\(prompt, answer, order=\[\[1\], \[0\]\]\)\n/);
  assert.match(text(asCommand([raw()], STATE)), /--gold-at 2 --replay Rusk --sampler-set order=1,0 --out run\n/);
  assert.match(text(asCommand([raw({ order: "left-to-right" })], STATE)), /--replay Rusk --out run\n/);
  assert.match(text(asPython([raw({ text: null, regions: { name: [0, 1] } })], STATE)), /answer = \[5, 6\]\ntrace = lens\.replay\(prompt, answer, order=.*, regions=\{"name": \[0, 1\]\}\)/);
  for (const change of [{ text: null }, { order: [[1], [], [0]] }, { regions: { name: [0, 1] as [number, number] } }]) assert.ok("reason" in asCommand([raw(change)], STATE));
});

test("a model is loaded as it was", () => {
  const raw = film({ request: { ...REQUEST, load: { family: "masked", dtype: "bfloat16" } } });
  assert.match(text(asPython([raw], STATE)), /lens = fl\.load\("small", family="masked", dtype="bfloat16"\)/);
  assert.match(text(asCommand([raw], STATE)), /trace small:masked .*--dtype bfloat16/);
  assert.match(text(asCommand([film({ request: { ...REQUEST, load: { block_length: 8 } } })], STATE)), /no option for the setting block_length/);
});

test("a prompt with another order or template is built first", () => {
  const first = film({ request: { ...REQUEST, built_from: { ...REQUEST.built_from, order: "first" } } });
  assert.match(text(asPython([first], STATE)), /prompt = lens\.prompt\(question, passages, gold=\[1\], order="first"\)\ntrace = lens\.trace\(prompt, /);
  assert.ok("reason" in asCommand([first], STATE));
  const other = film({ request: { ...REQUEST, built_from: { ...REQUEST.built_from, template: "Q: {question}" } } });
  assert.match(text(asPython([other], STATE)), /^import floatlens as fl\nfrom floatlens.data.template import parse\n[^]*gold=\[1\], template=parse\("Q: \{question\}"\)\)/);
  assert.ok("reason" in asCommand([other], STATE));
});

test("settings of one sampler go into its own value, and a film that says nothing is named", () => {
  const cfg = film({ request: { ...REQUEST, settings: { max_new_tokens: 2, seed: 0, cfg_scale: 1.5 } } });
  assert.match(text(asCommand([cfg], STATE)), /--max-new-tokens 2 --seed 0 --sampler-set cfg_scale=1\.5 --out run/);
  assert.match(text(asPython([cfg], STATE)), /max_new_tokens=2, seed=0, sampler=\{"cfg_scale": 1\.5\}\)/);
  assert.ok("reason" in asPython([decode(small())], STATE));
});
