/** The two maps beside the text: layers × positions at the step, steps × positions at the layer. Rows of one share a scale. */

import { h, resize, sizeOf } from "./dom.ts";
import { anchorBits, bit, changeOf, profile, type Film } from "./film.ts";
import { changeLevels, levels } from "./shade.ts";
import type { Pen } from "./svg.ts";
import { regionColour, regionKind, SANS } from "./theme.ts";
import type { View } from "./view.ts";

export const LEFT = 34; // room for the numbers of the rows
export const STRIP = 18; // room for the regions under a map

export interface Cell {
  position: number;
  row: number;
}

export abstract class MapView {
  readonly element: HTMLElement;
  readonly base: HTMLCanvasElement;
  private readonly over: HTMLCanvasElement;
  protected readonly small: HTMLCanvasElement = document.createElement("canvas");
  private pixels: ImageData | null = null;
  private drawnWith = "";
  private film: Film | null = null;
  protected width = 0;
  protected height = 0;
  private dragging = false;

  constructor(
    name: string,
    private readonly on: { hover(cell: Cell | null): void; click(cell: Cell, dragging: boolean): void },
  ) {
    this.base = h("canvas", { role: "img", "data-view": name });
    this.over = h("canvas", { "aria-hidden": "true", class: "over" });
    this.element = h("div", { class: "map" }, this.base, this.over);
    this.base.addEventListener("pointermove", (event) => {
      const cell = this.at(event);
      if (this.dragging && cell) this.on.click(cell, true);
      this.on.hover(cell);
    });
    this.base.addEventListener("pointerleave", () => this.on.hover(null));
    this.base.addEventListener("pointerdown", (event) => {
      const cell = this.at(event);
      if (!cell || event.pointerType === "touch") return; // a finger may only mean to scroll; its tap comes as a click
      this.dragging = true;
      this.base.setPointerCapture(event.pointerId);
      this.on.click(cell, false);
    });
    this.base.addEventListener("click", (event) => {
      const cell = (event as PointerEvent).pointerType === "touch" ? this.at(event) : null;
      if (cell) this.on.click(cell, false);
    });
    this.base.addEventListener("pointerup", () => (this.dragging = false));
    this.base.addEventListener("pointercancel", () => (this.dragging = false));
  }

  protected abstract rows(view: View): number;
  protected abstract rowValues(view: View, row: number): { values: Float32Array | null; count: number };
  /** The step and the layer of a row. */
  protected abstract cell(view: View, row: number): [step: number, layer: number | null];
  protected abstract rowAnchors(view: View, row: number): Uint8Array | null;
  protected abstract rowLabel(view: View, row: number): string;
  protected abstract current(view: View): number | null;
  /** What the pixels depend on: while it stays, only the cursor is drawn. */
  protected abstract key(view: View): string;

  /** Height of the map for a number of rows: tall enough to hit a row, low enough to see all at once. */
  private static tall(rows: number, alone: boolean): number {
    return Math.round(Math.min(alone ? 200 : 130, Math.max(48, rows * (alone ? 17 : 12))));
  }

  /** Height of the whole picture, with the regions under the map. */
  heightFor(view: View): number {
    return MapView.tall(this.rows(view), view.alone) + STRIP;
  }

  private at(event: MouseEvent): Cell | null {
    if (!this.film) return null;
    const box = this.base.getBoundingClientRect();
    const x = event.clientX - box.left - LEFT;
    const y = event.clientY - box.top;
    const rows = this.lastRows;
    if (x < 0 || y < 0 || y >= this.height) return null;
    const position = Math.min(this.film.T - 1, Math.floor((x / (this.width - LEFT)) * this.film.T));
    return { position, row: Math.min(rows - 1, Math.floor((y / this.height) * rows)) };
  }

  private lastRows = 1;

  /** Centre of a cell in CSS pixels of the canvas. */
  centre(position: number, row: number): { x: number; y: number } {
    return {
      x: LEFT + ((position + 0.5) / this.film!.T) * (this.width - LEFT),
      y: ((row + 0.5) / this.lastRows) * this.height,
    };
  }

  private measure(view: View, width: number): number {
    const rows = this.rows(view);
    this.film = view.film;
    this.width = width;
    this.height = MapView.tall(rows, view.alone);
    this.lastRows = rows;
    return rows;
  }

  /** Draw all of it at once on any pen, as wide as told; returns the height. */
  picture(pen: Pen, view: View, width: number): number {
    const rows = this.measure(view, width);
    this.paint(pen, view, rows, 2);
    this.paintOver(pen, view, rows);
    return this.height + STRIP;
  }

  draw(view: View, width: number): void {
    if (this.film !== view.film) this.drawnWith = "";
    const rows = this.measure(view, width);
    const context = resize(this.base, width, this.height + STRIP);
    const key = `${this.key(view)}/${sizeOf(this.base)}/${view.palette.dark}/${view.peak}/${view.rule}/${view.head}/${view.maps}/${view.film.S}/${view.film.raw.model}`;
    if (key !== this.drawnWith) {
      this.drawnWith = key;
      this.paint(context, view, rows, this.base.width / width);
    }
    this.drawOver(view, rows);
  }

  private paint(context: Pen, view: View, rows: number, ratio: number): void {
    const { film, palette } = view;
    const { T } = film;
    // Where there are more cells than pixels, a pixel shows the strongest of its cells: no anchor falls between two.
    const wide = Math.min(T, Math.floor((this.width - LEFT) * ratio));
    const tall = Math.min(rows, Math.floor(this.height * ratio));
    if (!this.pixels || this.pixels.width !== wide || this.pixels.height !== tall) {
      this.small.width = wide;
      this.small.height = tall;
      this.pixels = new ImageData(wide, tall);
    }
    const strongest = new Uint8Array(wide * tall);
    const shades = new Uint8Array(T);
    for (let row = 0; row < rows; row++) {
      if (view.maps === "attention") {
        const { values, count } = this.rowValues(view, row);
        levels(values, count, view.peak, shades);
      } else changeLevels(changeOf(film, view.maps, ...this.cell(view, row)), shades);
      const line = Math.floor((row * tall) / rows) * wide;
      for (let t = 0; t < T; t++) {
        const at = line + Math.floor((t * wide) / T);
        if (shades[t] > strongest[at]) strongest[at] = shades[t];
      }
    }
    const target = new Uint32Array(this.pixels.data.buffer);
    for (let i = 0; i < target.length; i++) target[i] = palette.pixels[strongest[i]];
    const cellWidth = (this.width - LEFT) / T;
    const cellHeight = this.height / rows;
    this.small.getContext("2d")!.putImageData(this.pixels, 0, 0);
    context.fillStyle = palette.paper;
    context.fillRect(0, 0, this.width, this.height + STRIP);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.small, LEFT, 0, this.width - LEFT, this.height);
    context.fillStyle = palette.anchor;
    // A cell that is wide enough is outlined; a narrower one gets a tick in its middle.
    const outlined = cellWidth >= 4 && cellHeight >= 6;
    context.strokeStyle = palette.anchor;
    context.lineWidth = 1;
    for (let row = 0; row < rows; row++) {
      const bits = this.rowAnchors(view, row);
      if (!bits) continue;
      for (let t = 0; t < T; t++) {
        if (!bit(bits, t)) continue;
        const x = LEFT + t * cellWidth;
        const y = row * cellHeight;
        if (outlined) context.strokeRect(x + 0.5, y + 0.5, cellWidth - 1, cellHeight - 1);
        else context.fillRect(x + cellWidth / 2 - 0.75, y + cellHeight * 0.2, 1.5, Math.max(1.5, cellHeight * 0.6));
      }
    }
    context.strokeStyle = palette.line;
    context.lineWidth = 1;
    context.strokeRect(LEFT - 0.5, 0.5, this.width - LEFT, this.height - 1);
    this.drawRows(context, view, rows);
    this.drawStrip(context, view);
  }

  private drawRows(context: Pen, view: View, rows: number): void {
    context.fillStyle = view.palette.faint;
    context.font = `10px ${SANS}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    const least = (rows * 13) / this.height;
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((n) => n >= least) ?? 1000;
    for (let row = 0; row < rows; row += every) {
      const y = Math.min(this.height - 5, Math.max(6, ((row + 0.5) / rows) * this.height));
      context.fillText(this.rowLabel(view, row), LEFT - 7, y);
    }
  }

  /** Regions along the positions: a band of colour each, with its name where that fits. */
  private drawStrip(context: Pen, view: View): void {
    const { film, palette } = view;
    const per = (this.width - LEFT) / film.T;
    context.font = `10px ${SANS}`;
    context.textAlign = "left";
    context.textBaseline = "top";
    for (const region of film.raw.regions) {
      const kind = regionKind(region.name, film.raw.gold);
      const x = LEFT + region.start * per;
      const w = Math.max(1, (Math.min(region.end, film.T) - region.start) * per - 0.75);
      context.fillStyle = regionColour(kind, palette.dark);
      context.fillRect(x, this.height + 3, w, 2.5);
      if (context.measureText(region.name).width <= w) context.fillText(region.name, x, this.height + 7);
    }
  }

  private overFor = "";
  private drawOver(view: View, rows: number): void {
    const key = `${this.current(view)}/${view.pin}/${view.hover?.position}/${rows}/${sizeOf(this.base)}/${view.film.T}/${view.palette.dark}`;
    if (key === this.overFor) return;
    this.overFor = key;
    const context = resize(this.over, this.width, this.height + STRIP);
    context.clearRect(0, 0, this.width, this.height + STRIP);
    this.paintOver(context, view, rows);
  }

  private paintOver(context: Pen, view: View, rows: number): void {
    const { palette } = view;
    const row = this.current(view);
    const per = (this.width - LEFT) / view.film.T;
    if (row !== null) {
      const y = (row / rows) * this.height;
      const tall = Math.max(2, this.height / rows);
      context.strokeStyle = palette.ink;
      context.lineWidth = 1.5;
      context.strokeRect(LEFT - 0.75, y - 0.25, this.width - LEFT - 0.25, tall + 0.5);
      context.fillStyle = palette.ink;
      context.beginPath();
      context.moveTo(LEFT - 2, y + tall / 2);
      context.lineTo(LEFT - 6, y + tall / 2 - 3.5);
      context.lineTo(LEFT - 6, y + tall / 2 + 3.5);
      context.fill();
    }
    const column = (t: number, alpha: number) => {
      context.globalAlpha = alpha;
      context.fillStyle = palette.ink;
      const x = LEFT + (t + 0.5) * per;
      context.fillRect(x - 0.5, 0, 1, this.height + 3);
      context.beginPath();
      context.moveTo(x, this.height);
      context.lineTo(x - 3.5, this.height + 6);
      context.lineTo(x + 3.5, this.height + 6);
      context.fill();
      context.globalAlpha = 1;
    };
    if (view.pin !== null) column(view.pin, 0.9);
    if (view.hover?.position !== null && view.hover) column(view.hover.position!, 0.5);
  }
}

export class LayerMap extends MapView {
  protected rows = (view: View) => view.film.L;
  protected rowValues = (view: View, row: number) => ({
    values: profile(view.film, view.step, row, view.head),
    count: view.film.counts[view.step],
  });
  protected cell = (view: View, row: number): [number, number] => [view.step, row];
  protected rowAnchors = (view: View, row: number) => anchorBits(view.film, view.rule, view.step, row);
  protected rowLabel = (view: View, row: number) => String(view.film.raw.layers[row]);
  protected current = (view: View) => view.hover?.layer ?? view.layer;
  protected key = (view: View) => `step ${view.step}`;
}

export class StepMap extends MapView {
  protected rows = (view: View) => view.film.S;
  protected rowValues = (view: View, row: number) => {
    const kept = view.head === null || view.film.headSteps.includes(row);
    return { values: kept ? profile(view.film, row, view.layer, view.head) : null, count: view.film.counts[row] };
  };
  protected cell = (view: View, row: number): [number, number | null] => [row, view.layer];
  protected rowAnchors = (view: View, row: number) => anchorBits(view.film, view.rule, row, view.layer);
  protected rowLabel = (view: View, row: number) => String(view.film.raw.steps[row]);
  protected current = (view: View) => view.hover?.step ?? view.step;
  protected key = (view: View) => `layer ${view.layer}`;
}
