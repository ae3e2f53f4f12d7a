/** The legend: what the shades and colours mean that are on the screen. */

import { h } from "./dom.ts";
import { shadeOf, ticks } from "./shade.ts";
import type { State } from "./state.ts";
import { kindColour, regionColour, regionKind, type Palette } from "./theme.ts";
import type { View } from "./view.ts";

export class Legend {
  readonly element = h("div", { class: "legend" });
  private drawn = "";

  draw(views: View[], palette: Palette, state: State): void {
    const films = views.map((view) => view.film);
    const rows = views.filter((view) => view.row);
    const peak = rows.length ? Math.max(...rows.map((view) => view.rowPeak)) : views[0].peak;
    const what = !rows.length ? "attention received" : state.direction === "from" ? "text: attention from the chosen token" : "text: attention to the chosen token";
    const key = JSON.stringify([palette.dark, peak, what, state.colour, films.map((f) => [f.raw.gold, f.raw.regions.length])]);
    if (key === this.drawn) return;
    this.drawn = key;
    const chip = (colour: string, name: string) => {
      const swatch = h("i", { class: "swatch" });
      swatch.style.background = colour;
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
    const parts: HTMLElement[] = [h("span", { class: "chip" }, `${what}, in multiples of the uniform share`), scale];
    const regions = [...new Set(films.flatMap((f) => f.raw.regions.map((r) => regionKind(r.name, f.raw.gold))))].filter((k) => k !== "other");
    const regionNames: Record<string, string> = { gold: "gold passage", doc: "passage", query: "question" };
    if (state.colour === "kind") {
      const groups = films[0].raw.kind_groups ?? {};
      for (const group of ["structural", "lexical"])
        for (const kind of Object.keys(groups).filter((k) => groups[k] === group)) parts.push(chip(kindColour(kind, palette.dark), kind));
    } else for (const kind of regions) parts.push(chip(regionColour(kind, palette.dark), regionNames[kind] ?? kind));
    parts.push(h("span", { class: "chip" }, h("i", { class: "swatch anchor" }), "anchor"));
    if (films.some((f) => f.raw.diffusion)) parts.push(h("span", { class: "chip" }, h("i", { class: "swatch mask" }), "mask, filled by the confidence of what it would become"));
    parts.push(h("span", { class: "chip" }, h("i", { class: "swatch fresh" }), "written at this step"));
    this.element.replaceChildren(...parts);
  }
}
