/** The line of text about the token under the cursor. */

import { headName, layerName } from "./about.ts";
import { anchorBits, bit, isRevised, piece, profile, tokenAfter, tokenBefore } from "./film.ts";
import { percent, times } from "./shade.ts";
import { regionKind } from "./theme.ts";
import type { View } from "./view.ts";
import { spell } from "./words.ts";

/** The token at a position, and facts about it: its region and kind, and what it receives at the step and layer under the cursor. */
export function inspect(view: View, position: number): { token: string; facts: string[] } {
  const { film } = view;
  const { raw } = film;
  const step = Math.min(view.hover?.step ?? view.step, film.S - 1);
  const layer = view.hover?.layer ?? view.layer;
  const id = tokenAfter(film, step, position);
  const masked = film.masks.has(id);
  const token = id < 0 ? "not written yet" : masked ? "mask" : spell(piece(film, id), film.special.has(id)).text;
  const region = raw.regions[film.regionOf[position]];
  const facts = [`position ${position}`];
  if (region) facts.push(region.name + (regionKind(region.name, raw.gold) === "gold" ? " (gold)" : ""));
  else facts.push("template");
  const kind = masked ? "" : raw.kinds[position];
  if (kind) facts.push(kind);
  const committed = raw.committed_at[position] ?? -1;
  if (committed >= 0 && committed <= raw.steps[step]) facts.push(`written at step ${committed}`);
  if (isRevised(film, step, position)) facts.push(`revised ${raw.revised![position] === 1 ? "once" : `${raw.revised![position]} times`}`);
  const sure = film.confidence[step * film.T + position];
  if (masked && sure > 0) facts.push(`best candidate has p = ${sure.toFixed(2)}`);
  if (id >= 0 && tokenBefore(film, step, position) !== id) facts.push(raw.diffusion ? "written at this step: attention was computed while it was a mask" : "written at this step: attention was computed without it");
  const values = profile(film, step, layer, view.head);
  const value = values ? values[position] : NaN;
  const where = layerName(film, layer);
  const head = view.head === null ? "" : `, ${headName(film, view.head)}`;
  if (value === value)
    facts.push(`receives ${percent(value)} = ${times(value * film.counts[step])} the uniform share at step ${raw.steps[step]}, ${where}${head}`);
  if (bit(anchorBits(film, view.rule, step, layer), position)) facts.push(`anchor by ${view.rule}`);
  return { token, facts };
}
