/** Heads as small multiples: what each head's keys receive at the step and layer, along the positions. */

import { h, resize } from "./dom.ts";
import { headPeak, nearest, profile, type Film } from "./film.ts";
import { level, LEVELS } from "./shade.ts";
import { LEFT } from "./maps.ts";
import type { View } from "./view.ts";

const SANS = '"Inter", "Helvetica Neue", "Noto Sans", system-ui, sans-serif';
const GAP = 8;

export class HeadsView {
  readonly element: HTMLElement;
  readonly base: HTMLCanvasElement;
  private film: Film | null = null;
  private columns = 1;
  private cell = { w: 1, h: 1 };
  private drawnWith = "";

  constructor(on: { click(head: number): void; hover(position: number | null): void }) {
    this.base = h("canvas", { role: "img", "data-view": "heads" });
    this.element = h("div", { class: "map heads" }, this.base);
    this.base.addEventListener("click", (event) => {
      const found = this.at(event);
      if (found) on.click(found.head);
    });
    this.base.addEventListener("mousemove", (event) => on.hover(this.at(event)?.position ?? null));
    this.base.addEventListener("mouseleave", () => on.hover(null));
  }

  private at(event: MouseEvent): { head: number; position: number } | null {
    if (!this.film) return null;
    const box = this.base.getBoundingClientRect();
    const x = event.clientX - box.left - LEFT;
    const y = event.clientY - box.top;
    const column = Math.floor(x / (this.cell.w + GAP));
    const head = column + this.columns * Math.floor(y / (this.cell.h + GAP));
    const inside = x - column * (this.cell.w + GAP);
    if (x < 0 || column >= this.columns || head >= this.film.H || inside > this.cell.w) return null;
    return { head, position: Math.min(this.film.T - 1, Math.floor((inside / this.cell.w) * this.film.T)) };
  }

  private peaks = new WeakMap<Film, number>();
  private peakOf(film: Film): number {
    let found = this.peaks.get(film);
    if (found === undefined) {
      found = 4;
      for (let head = 0; head < film.H; head++) found = Math.max(found, headPeak(film, head));
      this.peaks.set(film, found);
    }
    return found;
  }

  draw(view: View, width: number): void {
    const { film, palette } = view;
    if (this.film !== film) this.drawnWith = "";
    this.film = film;
    const there = film.heads !== null && nearest(film.headSteps, view.step) >= 0;
    this.element.hidden = !there;
    if (!there) return;
    const room = width - LEFT;
    this.columns = columnsFor(film.H, Math.max(1, Math.min(8, Math.floor(room / 76))));
    const rows = Math.ceil(film.H / this.columns);
    this.cell = { w: Math.floor((room - GAP * (this.columns - 1)) / this.columns), h: rows > 2 ? 28 : rows > 1 ? 40 : 56 };
    const height = rows * (this.cell.h + GAP);
    const mark = view.hover?.position ?? view.pin;
    const at = nearest(film.headSteps, view.step);
    const key = `${at}/${view.layer}/${view.head}/${width}/${palette.dark}/${mark}/${film.S}/${film.raw.model}`;
    const context = resize(this.base, width, height);
    if (key === this.drawnWith) return;
    this.drawnWith = key;
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, width, height);
    const count = film.counts[film.headSteps[at]] || 1;
    const peak = this.peakOf(film);
    const bars = new Float32Array(this.cell.w);
    for (let head = 0; head < film.H; head++) {
      const values = profile(film, view.step, view.layer, head)!;
      const x = LEFT + (head % this.columns) * (this.cell.w + GAP);
      const y = Math.floor(head / this.columns) * (this.cell.h + GAP);
      const foot = y + this.cell.h;
      bars.fill(0);
      for (let t = 0; t < film.T; t++) {
        const from = Math.floor((t * this.cell.w) / film.T);
        const to = Math.max(from + 1, Math.floor(((t + 1) * this.cell.w) / film.T));
        for (let i = from; i < to; i++) if (values[t] > bars[i]) bars[i] = values[t];
      }
      // Bars of the same height in a run are one rectangle: fewer calls, the same picture.
      for (let i = 0; i < bars.length; ) {
        const shade = level(bars[i] * count, peak);
        let end = i + 1;
        while (end < bars.length && bars[end] === bars[i]) end++;
        const tall = Math.round((shade / (LEVELS - 1)) * (this.cell.h - 10));
        if (tall > 0) {
          context.fillStyle = palette.ramp[Math.min(255, 110 + Math.round(shade * 0.5))];
          context.fillRect(x + i, foot - tall, end - i, tall);
        }
        i = end;
      }
      context.fillStyle = view.head === head ? palette.ink : palette.line;
      context.fillRect(x, foot, this.cell.w, view.head === head ? 2 : 1);
      context.fillStyle = view.head === head ? palette.ink : palette.faint;
      context.font = `${view.head === head ? "600 " : ""}10px ${SANS}`;
      context.textAlign = "left";
      context.textBaseline = "top";
      context.fillText(String(film.raw.head_numbers?.[head] ?? head), x, y);
      if (mark !== null && mark !== undefined) {
        context.fillStyle = palette.ink;
        context.globalAlpha = 0.6;
        context.fillRect(x + ((mark + 0.5) / film.T) * this.cell.w - 0.5, y + 10, 1, this.cell.h - 10);
        context.globalAlpha = 1;
      }
    }
  }
}

/** As many columns as fit, so that no row is left half empty where that can be had. */
export function columnsFor(heads: number, most: number): number {
  for (let columns = Math.min(most, heads); columns > most / 2; columns--) if (heads % columns === 0) return columns;
  return Math.min(most, heads);
}
