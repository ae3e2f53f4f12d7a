/** What is shown, as plain data, and how keys change it. */

import type { Direction } from "./film.ts";

export interface Place {
  panel: number; // 0 left, 1 right
  position: number;
  layer?: number;
  step?: number;
}

export type Colour = "attention" | "region" | "kind";
export type Theme = "auto" | "light" | "dark";

export interface State {
  films: number[]; // which films are shown: one, or two side by side
  step: number; // place in the left film
  layer: number | null; // place in the left film's layers; null: the mean over layers
  head: number | null; // null: the mean over heads
  rule: string;
  colour: Colour;
  pin: Place | null;
  hover: Place | null;
  direction: Direction | null; // shade by the attention from or to the pinned token
  playing: boolean;
  speed: number; // steps a second
  theme: Theme;
}

export interface Bounds {
  steps: number;
  layers: number;
  heads: number;
  positions: number;
  rules: string[];
  canAttend: boolean;
}

export const SPEEDS = [1, 2, 4, 8, 16];
export const COLOURS: Colour[] = ["attention", "region", "kind"];

export const KEYS: [string, string][] = [
  ["space", "play or pause"],
  ["\u2190 \u2192", "a step back, a step on; with shift, ten"],
  ["Home End", "first step, last step"],
  ["\u2191 \u2193", "a layer up, a layer down"],
  ["a", "all layers (their mean)"],
  ["[ ]", "the token before, the token after"],
  ["h", "the next head; with shift, the one before"],
  ["f", "attention from the chosen token"],
  ["t", "attention to the chosen token"],
  ["r", "the next anchor rule"],
  ["c", "colours: attention, region, kind"],
  ["d", "dark or light"],
  ["Esc", "let go of token and head"],
];

const clamp = (value: number, low: number, high: number) => Math.max(low, Math.min(high, value));

/** What a key changes, or null if the key means nothing here. */
export function onKey(state: State, bounds: Bounds, key: string, shift: boolean, dark: boolean): Partial<State> | null {
  const step = (by: number) => ({ step: clamp(state.step + by, 0, bounds.steps - 1), playing: false });
  switch (key) {
    case " ":
      return { playing: !state.playing };
    case "ArrowRight":
      return step(shift ? 10 : 1);
    case "ArrowLeft":
      return step(shift ? -10 : -1);
    case "Home":
      return step(-state.step);
    case "End":
      return step(bounds.steps);
    case "ArrowUp":
      return { layer: state.layer === null ? bounds.layers - 1 : state.layer === 0 ? null : state.layer - 1 };
    case "ArrowDown":
      return { layer: state.layer === null ? 0 : state.layer === bounds.layers - 1 ? null : state.layer + 1 };
    case "a":
      return { layer: null };
    case "[":
    case "]": {
      const at = state.pin?.position ?? (key === "]" ? -1 : bounds.positions);
      return { pin: { panel: state.pin?.panel ?? 0, position: clamp(at + (key === "]" ? 1 : -1), 0, bounds.positions - 1) } };
    }
    case "h":
    case "H": {
      const order = [null, ...Array.from({ length: bounds.heads }, (_, h) => h)];
      const at = order.indexOf(state.head) + (shift ? -1 : 1);
      return { head: order[(at + order.length) % order.length] };
    }
    case "f":
    case "t": {
      if (!state.pin || !bounds.canAttend) return {};
      const direction = key === "f" ? "from" : "to";
      return { direction: state.direction === direction ? null : direction };
    }
    case "r":
      return { rule: bounds.rules[(bounds.rules.indexOf(state.rule) + 1) % bounds.rules.length] };
    case "c":
      return { colour: COLOURS[(COLOURS.indexOf(state.colour) + 1) % COLOURS.length] };
    case "d":
      return { theme: dark ? "light" : "dark" };
    case "Escape":
      return { pin: null, direction: null, head: null };
    default:
      return null;
  }
}
