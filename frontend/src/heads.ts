/** Heads as small multiples: what each head's keys receive at the step and layer, along the positions. */

import { h, resize, sizeOf } from "./dom.ts";
import { headPeak, nearest, profile, type Film } from "./film.ts";
import { LEVELS, levels } from "./shade.ts";
import { LEFT } from "./maps.ts";
import type { Pen } from "./svg.ts";
import { SANS } from "./theme.ts";
import type { View } from "./view.ts";

const GAP = 8;

export class HeadsView {
  readonly element: HTMLElement;
  readonly base: HTMLCanvasElement;
  private film: Film | null = null;
  private columns = 1;
  private cell = { w: 1, h: 1 };
  private drawnWith = "";
  private readonly small = document.createElement("canvas");

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
    this.element.hidden = !shows(view);
    if (!shows(view)) return;
    const height = this.heightFor(film, width);
    const mark = view.hover?.position ?? view.pin;
    const at = nearest(film.headSteps, view.step);
    const context = resize(this.base, width, height);
    const key = `${at}/${view.layer}/${view.head}/${sizeOf(this.base)}/${palette.dark}/${mark}/${film.S}/${film.raw.model}`;
    if (key === this.drawnWith) return;
    this.drawnWith = key;
    this.paint(context, view, width, height);
  }

  /** Draw all of it at once on any pen, as wide as told; returns the height. */
  picture(pen: Pen, view: View, width: number): number {
    const height = this.heightFor(view.film, width);
    this.paint(pen, view, width, height);
    return height;
  }

  /** Lay the heads out as wide as told; returns the height. */
  heightFor(film: Film, width: number): number {
    this.film = film;
    const room = width - LEFT;
    this.columns = columnsFor(film.H, Math.max(1, Math.min(8, Math.floor(room / 64))));
    const rows = Math.ceil(film.H / this.columns);
    this.cell = { w: Math.floor((room - GAP * (this.columns - 1)) / this.columns), h: rows > 2 ? 28 : rows > 1 ? 40 : 56 };
    return rows * (this.cell.h + GAP);
  }

  private paint(context: Pen, view: View, width: number, height: number): void {
    const { film, palette } = view;
    const mark = view.hover?.position ?? view.pin;
    const at = nearest(film.headSteps, view.step);
    this.drawBars(view, film.counts[film.headSteps[at]] || 1, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.small, 0, 0);
    for (let head = 0; head < film.H; head++) {
      const { x, y } = this.corner(head);
      const foot = y + this.cell.h;
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

  private corner(head: number): { x: number; y: number } {
    return { x: LEFT + (head % this.columns) * (this.cell.w + GAP), y: Math.floor(head / this.columns) * (this.cell.h + GAP) };
  }

  /** All bars as one picture: 32 heads of 512 positions are too many rectangles for a frame. */
  private drawBars(view: View, count: number, width: number, height: number): void {
    const { film, palette } = view;
    const wide = Math.ceil(width);
    this.small.width = wide;
    this.small.height = height;
    const picture = new ImageData(wide, height);
    const pixels = new Uint32Array(picture.data.buffer).fill(palette.pixels[0]);
    const shades = new Uint8Array(film.T);
    const bars = new Uint8Array(this.cell.w);
    const peak = this.peakOf(film);
    for (let head = 0; head < film.H; head++) {
      levels(profile(film, view.step, view.layer, head), count, peak, shades);
      bars.fill(0);
      for (let t = 0; t < film.T; t++) {
        const from = Math.floor((t * this.cell.w) / film.T);
        const to = Math.max(from + 1, Math.floor(((t + 1) * this.cell.w) / film.T));
        for (let i = from; i < to; i++) if (shades[t] > bars[i]) bars[i] = shades[t];
      }
      const { x, y } = this.corner(head);
      for (let i = 0; i < bars.length; i++) {
        const tall = Math.round((bars[i] / (LEVELS - 1)) * (this.cell.h - 10));
        const colour = palette.pixels[Math.min(255, 110 + (bars[i] >> 1))];
        for (let up = 1; up <= tall; up++) pixels[(y + this.cell.h - up) * wide + x + i] = colour;
      }
    }
    this.small.getContext("2d")!.putImageData(picture, 0, 0);
  }
}

/** Does the film have single heads at this step? */
export const shows = ({ film, step }: View): boolean => film.heads !== null && nearest(film.headSteps, step) >= 0;

/** As many columns as fit, so that no row is left half empty where that can be had. */
export function columnsFor(heads: number, most: number): number {
  for (let columns = Math.min(most, heads); columns > most / 2; columns--) if (heads % columns === 0) return columns;
  return Math.min(most, heads);
}
