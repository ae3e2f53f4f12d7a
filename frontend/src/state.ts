/** What is shown, as plain data, and how keys change it. */

import type { Change, Direction, Film } from "./film.ts";

export interface Place {
  panel: number; // 0 left, 1 right
  position: number;
  layer?: number;
  step?: number;
}

export type Colour = "attention" | "region" | "kind";
export type Maps = "attention" | Change;
export type Theme = "auto" | "light" | "dark";

export interface State {
  films: number[]; // which films are shown: one, or two side by side
  step: number; // index into the steps of the first film
  layer: number | null; // index into the layers of the first film; null: the mean over layers
  head: number | null; // null: the mean over heads
  rule: string;
  colour: Colour;
  maps: Maps; // what shades the maps
  pin: Place | null;
  hover: Place | null;
  direction: Direction | null; // shade by the attention from or to the pinned token
  playing: boolean;
  speed: number; // steps per second
  theme: Theme;
}

export interface Bounds {
  steps: number;
  layers: number;
  heads: number;
  positions: number;
  rules: string[];
  canAttend: boolean;
  maps: Maps[]; // what can shade the maps
}

export const SPEEDS = [1, 2, 4, 8, 16];
export const COLOURS: Colour[] = ["attention", "region", "kind"];

export const MAP_NAMES: Record<Maps, string> = { attention: "attention", drift: "change of keys and values", moved: "attention that moved" };

/** What can shade the maps of these films. */
export const mapsOf = (films: Pick<Film, "drift" | "moved">[]): Maps[] => [
  "attention",
  ...(["drift", "moved"] as const).filter((what) => films.some((film) => film[what] !== null)),
];

export const KEYS: [string, string][] = [
  ["space", "play or pause"],
  ["\u2190 \u2192", "previous or next step; with Shift, ten steps"],
  ["Home End", "first or last step"],
  ["\u2191 \u2193", "previous or next layer"],
  ["a", "mean of all layers"],
  ["[ ]", "previous or next token"],
  ["h", "next head; with Shift, previous head"],
  ["f", "attention from the selected token"],
  ["t", "attention to the selected token"],
  ["r", "next anchor rule"],
  ["c", "next colours: attention, region, kind"],
  ["m", "next shading of the maps, where drift was recorded"],
  ["d", "dark or light theme"],
  ["Esc", "clear the selected token and head"],
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
    case "m":
      return { maps: bounds.maps[(bounds.maps.indexOf(state.maps) + 1) % bounds.maps.length] };
    case "d":
      return { theme: dark ? "light" : "dark" };
    case "Escape":
      return { pin: null, direction: null, head: null };
    default:
      return null;
  }
}
