/** Small films for the tests, packed as Python packs them. */

import type { Packed, RawFilm } from "../src/film.ts";
import type { State } from "../src/state.ts";

export const STATE: State = {
  films: [0], step: 0, layer: null, head: null, rule: "first", colour: "attention", maps: "attention", pin: null, hover: null, direction: null, playing: false, speed: 4, theme: "auto",
};

const base64 = (bytes: Uint8Array) => Buffer.from(bytes).toString("base64");

/** Nearest half of a number that a half can hold exactly: enough for tests. */
export function toHalf(value: number): number {
  if (Number.isNaN(value)) return 0x7e00;
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  const sign = value < 0 ? 0x8000 : 0;
  return sign | ((exponent + 15) << 10) | Math.round((Math.abs(value) / 2 ** exponent - 1) * 1024);
}

export const halves = (values: number[], shape: number[]): Packed => ({
  dtype: "float16",
  shape,
  data: base64(new Uint8Array(Uint16Array.from(values, toHalf).buffer)),
});
export const ints = (values: number[], shape: number[]): Packed => ({ dtype: "int32", shape, data: base64(new Uint8Array(Int32Array.from(values).buffer)) });
export const bytes = (values: number[], shape: number[]): Packed => ({ dtype: "uint8", shape, data: base64(Uint8Array.from(values)) });

/** Two steps, two layers, four positions: bos, "Ada", and two places that become "is" and "here", one a step. */
export function small(change: Partial<RawFilm> = {}): RawFilm {
  return {
    format: "floatlens-film/1",
    id: "small",
    model: "small",
    family: "llada",
    diffusion: true,
    question: "Who?",
    output: "is here",
    answers: [],
    prompt_length: 2,
    layers: [0, 5],
    heads: 1,
    steps: [0, 1],
    vocabulary: { "0": "<|bos|>", "1": " Ada", "2": "<|mask|>", "3": " is", "4": " here" },
    special_ids: [0, 2],
    mask_ids: [2],
    tokens: ints([0, 1, 2, 2, 0, 1, 3, 2, 0, 1, 3, 4], [3, 4]),
    committed_at: [-1, -1, 0, 1],
    confidence: halves([NaN, NaN, 0.75, 0.5, NaN, NaN, NaN, 0.875], [2, 4]),
    regions: [
      { name: "bos", start: 0, end: 1 },
      { name: "query", start: 1, end: 2 },
      { name: "answer", start: 2, end: 4 },
    ],
    gold: [],
    kinds: ["special", "name", "function", "function"],
    received: halves([0.5, 0.25, 0.125, 0.125, 0.25, 0.5, 0.125, 0.125, 0.125, 0.125, 0.5, 0.25, 0.125, 0.25, 0.125, 0.5], [2, 2, 4]),
    received_heads: null,
    attention: null,
    anchors: { first: bytes([1, 1, 1, 1], [2, 2, 1]), "top(n=1)": bytes([1, 2, 4, 8], [2, 2, 1]) },
    anchors_all: { first: bytes([1, 1], [2, 1]), "top(n=1)": bytes([1, 8], [2, 1]) },
    interventions: [],
    thinned: null,
    ...change,
  };
}
