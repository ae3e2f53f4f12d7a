/** What is said about a film in words: its size, its answer, and what each view shows. */

import { nearest, type Film } from "./film.ts";
import { MAP_NAMES } from "./state.ts";
import type { View } from "./view.ts";

export function aboutFilm(film: Film): string {
  const kind = film.raw.diffusion ? "masked diffusion" : "autoregressive";
  return `${kind} \u00b7 ${film.T} positions \u00b7 ${film.S} steps \u00b7 ${film.L} layers \u00d7 ${film.H} heads`;
}

export const layerName = (film: Film, layer: number | null): string => (layer === null ? "mean of all layers" : `layer ${film.raw.layers[layer]}`);
export const headName = (film: Film, head: number): string => `head ${film.raw.head_numbers?.[head] ?? head}`;

/** Names of the three figures, each with what it shows. */
export function captionsOf(view: View): [name: string, where: string][] {
  const { film } = view;
  const step = film.raw.steps[view.step];
  const layer = layerName(film, view.layer);
  const head = view.head === null ? "" : `, ${headName(film, view.head)}`;
  const at = nearest(film.headSteps, view.step);
  const kept = at >= 0 ? film.raw.steps[film.headSteps[at]] : step;
  const changed = view.maps === "attention" ? "" : `${MAP_NAMES[view.maps]} since the step before`;
  return [
    ["Layers \u00d7 positions", changed ? `${changed}, step ${step}` : `step ${view.head === null ? step : kept}${head}`],
    ["Steps \u00d7 positions", changed ? `${changed}, ${layer}` : `${layer}${head}`],
    ["Heads", `step ${kept}${kept === step ? "" : " (the nearest one kept)"}, ${layer}`],
  ];
}

/** What the model wrote, whether that is a gold answer, and which was expected if it is not. */
export function answerOf(film: Film): { output: string; correct: boolean; expected: string; interventions: string } {
  const { output, answers, interventions } = film.raw;
  const same = (text: string) => text.trim().toLowerCase().replace(/[.\s]+$/, "");
  const correct = output !== "" && answers.some((answer) => same(answer) === same(output));
  return { output, correct, expected: correct ? "" : answers.slice(0, 3).join(" / "), interventions: interventions.join(" + ") };
}
