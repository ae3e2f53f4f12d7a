/** One cursor over two films: the same moment, the same depth, the same place in the text. */

import type { Film } from "./film.ts";

const scaled = (at: number, from: number, to: number) => (from <= 1 ? 0 : Math.round((at * (to - 1)) / (from - 1)));

/** The step of `to` at the same share of its own length. */
export const linkStep = (from: Film, to: Film, step: number): number => (from === to ? step : scaled(step, from.S, to.S));

/** The layer at the same depth. */
export const linkLayer = (from: Film, to: Film, layer: number | null): number | null =>
  layer === null || from === to ? layer : scaled(layer, from.L, to.L);

/** The position that means the same: the same token of the same prompt, else the same place within the same region. */
export function linkPosition(from: Film, to: Film, position: number): number | null {
  if (from === to) return position;
  if (samePrompt(from, to)) return position < to.T ? position : null;
  const region = from.raw.regions[from.regionOf[position]];
  const twin = region && to.raw.regions.find((r) => r.name === region.name);
  if (!twin) return null;
  if (region.name === "answer") return twin.start + position - region.start < twin.end ? twin.start + position - region.start : null;
  return twin.start + scaled(position - region.start, region.end - region.start, twin.end - twin.start);
}

function samePrompt(a: Film, b: Film): boolean {
  const P = a.raw.prompt_length;
  if (P !== b.raw.prompt_length) return false;
  for (let t = 0; t < P; t++) {
    const left = a.raw.vocabulary[String(a.tokens[t])];
    if (left === undefined || left !== b.raw.vocabulary[String(b.tokens[t])]) return false;
  }
  return true;
}
