/** The legend: what the shades and colours on the screen mean. */

import { h } from "./dom.ts";
import { shadeOf, ticks } from "./shade.ts";
import { MAP_NAMES, type State } from "./state.ts";
import { kindColour, regionColour, regionKind, type Palette } from "./theme.ts";
import type { View } from "./view.ts";

export interface Chip {
  sign: "colour" | "anchor" | "mask" | "fresh" | "revised";
  colour?: string;
  name: string;
}

const REGIONS: Record<string, string> = { gold: "gold passage", doc: "passage", query: "question" };

/** What the legend says: the meaning of the shades, the largest of them, and the signs. */
export function legendOf(views: View[], palette: Palette, state: Pick<State, "colour" | "direction">): { what: string; peak: number; chips: Chip[] } {
  const films = views.map((view) => view.film);
  const rows = views.filter((view) => view.row);
  const what = !rows.length ? "attention received" : `text: attention ${state.direction === "from" ? "from" : "to"} the selected token`;
  const chips: Chip[] = [];
  if (state.colour === "kind") {
    const groups = films[0].raw.kind_groups ?? {};
    for (const group of ["structural", "lexical"])
      for (const kind of Object.keys(groups).filter((k) => groups[k] === group)) chips.push({ sign: "colour", colour: kindColour(kind, palette.dark), name: kind });
  } else {
    const kinds = new Set(films.flatMap((f) => f.raw.regions.map((r) => regionKind(r.name, f.raw.gold))));
    kinds.delete("other");
    for (const kind of kinds) chips.push({ sign: "colour", colour: regionColour(kind, palette.dark), name: REGIONS[kind] ?? kind });
  }
  chips.push({ sign: "anchor", name: "anchor" });
  if (films.some((f) => f.raw.diffusion)) chips.push({ sign: "mask", name: "mask, filled by the sampler's confidence" });
  chips.push({ sign: "fresh", name: "written at this step" });
  if (films.some((f) => f.raw.revised?.some((count) => count > 0))) chips.push({ sign: "revised", name: "revised: replaced another token" });
  const changed = views.find((view) => view.maps !== "attention");
  const maps = changed ? `; maps: ${MAP_NAMES[changed.maps]} since the step before, from none to all of it` : "";
  return { what: `${what}, in multiples of the uniform share${maps}`, peak: rows.length ? Math.max(...rows.map((view) => view.rowPeak)) : views[0].peak, chips };
}

export class Legend {
  readonly element = h("div", { class: "legend" });
  private drawn = "";

  draw(views: View[], palette: Palette, state: State): void {
    const { what, peak, chips } = legendOf(views, palette, state);
    const key = JSON.stringify([palette.dark, what, peak, chips]);
    if (key === this.drawn) return;
    this.drawn = key;
    const chip = ({ sign, colour, name }: Chip) => {
      const swatch = h("i", { class: sign === "colour" ? "swatch" : `swatch ${sign}` });
      if (colour) swatch.style.background = colour;
      return h("span", { class: "chip" }, swatch, name);
    };
    const ramp = h("span", { class: "ramp", role: "img", "aria-label": "Shades of received attention" });
    ramp.style.background = `linear-gradient(to right, ${[0, 32, 64, 96, 128, 160, 192, 224, 255].map((i) => palette.ramp[i]).join(", ")})`;
    const scale = h("span", { class: "scale" }, ramp);
    for (const n of ticks(peak)) {
      const tick = h("small", {}, `${n}\u00d7`);
      tick.style.left = `${shadeOf(n, peak) * 100}%`;
      scale.append(tick);
    }
    this.element.replaceChildren(h("span", { class: "chip" }, what), scale, ...chips.map(chip));
  }
}
