import assert from "node:assert/strict";
import { test } from "node:test";
import { onKey, type Bounds, type State } from "../src/state.ts";
import { STATE } from "./films.ts";

const BOUNDS: Bounds = { steps: 8, layers: 3, heads: 2, positions: 10, rules: ["first", "top(n=1)"], canAttend: true, maps: ["attention", "drift"] };
const press = (key: string, state: Partial<State> = {}, shift = false, bounds = BOUNDS) => onKey({ ...STATE, step: 5, ...state }, bounds, key, shift, false);

test("steps stop at both ends", () => {
  assert.equal(press("ArrowRight", {}, true)?.step, 7);
  assert.equal(press("ArrowLeft", {}, true)?.step, 0);
  assert.equal(press("End")?.step, 7);
  assert.equal(press("Home")?.step, 0);
});

test("layers go round through their mean", () => {
  assert.equal(press("ArrowDown")?.layer, 0);
  assert.equal(press("ArrowDown", { layer: 2 })?.layer, null);
  assert.equal(press("ArrowUp", { layer: 0 })?.layer, null);
  assert.equal(press("ArrowUp")?.layer, 2);
});

test("tokens are walked one by one", () => {
  assert.deepEqual(press("]")?.pin, { panel: 0, position: 0 });
  assert.deepEqual(press("[")?.pin, { panel: 0, position: 9 });
  assert.deepEqual(press("]", { pin: { panel: 1, position: 9 } })?.pin, { panel: 1, position: 9 });
});

test("the attention of a token needs a token and something that knows it", () => {
  const pin = { panel: 0, position: 3 };
  assert.deepEqual(press("f"), {});
  assert.deepEqual(press("f", { pin }), { direction: "from" });
  assert.deepEqual(press("t", { pin, direction: "to" }), { direction: null });
  assert.deepEqual(press("t", { pin }, false, { ...BOUNDS, canAttend: false }), {});
});

test("heads, rules and colours go round; other keys mean nothing", () => {
  assert.equal(press("h", { head: 1 })?.head, null);
  assert.equal(press("H", {}, true)?.head, 1);
  assert.equal(press("r", { rule: "top(n=1)" })?.rule, "first");
  assert.equal(press("c", { colour: "kind" })?.colour, "attention");
  assert.deepEqual([press("m")?.maps, press("m", { maps: "drift" })?.maps], ["drift", "attention"]);
  assert.equal(press("x"), null);
});
