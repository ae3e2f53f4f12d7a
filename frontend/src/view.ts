/** What one panel draws at a moment: the state, seen from its own film. */

import { anchorBits, attentionOf, profile, type Direction, type Film } from "./film.ts";
import type { Colour, Maps } from "./state.ts";
import type { Palette } from "./theme.ts";

export interface Focus {
  position: number | null;
  layer: number | null;
  step: number | null;
}

export interface View {
  film: Film;
  palette: Palette;
  alone: boolean; // the only film that is shown
  step: number;
  layer: number | null;
  head: number | null;
  rule: string;
  colour: Colour;
  maps: Maps;
  peak: number; // of the shades, shared by the films that are shown
  pin: number | null;
  hover: Focus | null;
  direction: Direction | null;
  row: Float32Array | null; // attention from or to the pinned token, if that is what shades the text
  rowPeak: number; // the largest of the row, in multiples of the uniform share
}

/** What shades the text: received attention, or the row or column of the pinned token. */
export const shading = (view: View): Float32Array | null => view.row ?? profile(view.film, view.step, view.layer, view.head);

export const anchorsOf = (view: View): Uint8Array | null => anchorBits(view.film, view.rule, view.step, view.layer);

export function rowPeak(row: Float32Array | null, count: number): number {
  let peak = 4;
  for (const value of row ?? []) if (value * count > peak) peak = value * count;
  return peak;
}

export function rowOf(film: Film, step: number, layer: number | null, pin: number | null, direction: Direction | null): Float32Array | null {
  return pin === null || direction === null ? null : attentionOf(film, step, layer, pin, direction);
}
