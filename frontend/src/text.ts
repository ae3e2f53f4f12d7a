/**
 * The sequence as running text on canvas, in three sheets: shades, words over them, and the cursor on top. Each token is
 * drawn again on a sheet only when something about it changed there, so that a step costs what the step changes.
 */

import { h, resize, sizeOf } from "./dom.ts";
import { bit, isRevised, piece, tokenAfter, tokenBefore, type Film } from "./film.ts";
import { flow, tokenAt, type Flow } from "./layout.ts";
import { levels } from "./shade.ts";
import type { Pen } from "./svg.ts";
import { kindColour, regionColour, regionColourAt, regionKind, SANS, tint } from "./theme.ts";
import { anchorsOf, shading, type View } from "./view.ts";
import { spell, type Word } from "./words.ts";

const ARCS = 12; // the strongest links of a row or column that are drawn as lines
const LABEL = 12; // pixels between two labels of regions
const HANG = 26; // margin on the right, where line ends may hang
const BOX = 4; // space between the box of a token and its line

interface Look {
  id: number;
  masked: boolean;
  hued: boolean; // the shade has the hue of a region or a kind
  shade: number;
  colour: string;
  ink: string; // what can be read on the shade
  plain: boolean; // the shade is pale enough for any ink
  fresh: boolean; // written at this step
  revised: boolean; // took the place of another token that was written before
  anchor: boolean;
  sure: number; // confidence of the sampler, in twentieths
}

export class TextView {
  readonly element: HTMLElement;
  readonly base: HTMLCanvasElement;
  private readonly glyphs: HTMLCanvasElement;
  private readonly over: HTMLCanvasElement;
  private film: Film | null = null;
  private place: Flow = { slots: [], height: 0, lines: 0 };
  private words = new Map<number, Word>();
  private levels = new Uint8Array(0);
  private shadeKeys = new Int32Array(0);
  private glyphKeys = new Float64Array(0);
  private drawnWith = "";
  private gutter = 0;
  private size = 15;
  private line = 28;
  private laidOutFor = "";
  labels: { name: string; start: number; end: number; y: number }[] = []; // of regions, in the margin

  constructor(on: { hover(position: number | null): void; click(position: number | null): void }) {
    this.base = h("canvas", { role: "img", "data-view": "text" });
    this.glyphs = h("canvas", { "aria-hidden": "true", class: "over" });
    this.over = h("canvas", { "aria-hidden": "true", class: "over" });
    this.element = h("div", { class: "text", tabindex: "-1" }, this.base, this.glyphs, this.over);
    const at = (event: MouseEvent) => {
      const box = this.base.getBoundingClientRect();
      const found = tokenAt(this.place.slots, this.line, event.clientX - box.left - this.gutter, event.clientY - box.top);
      return found < 0 ? null : found;
    };
    this.base.addEventListener("mousemove", (event) => on.hover(at(event)));
    this.base.addEventListener("mouseleave", () => on.hover(null));
    this.base.addEventListener("click", (event) => {
      this.revealed = at(event); // it is in sight: the text must not move under the pointer
      on.click(this.revealed);
    });
  }

  /** Where a token is drawn, in CSS pixels of the canvas. */
  boxOf(position: number): { x: number; y: number; w: number; h: number } | null {
    const slot = this.place.slots[position];
    return slot ? { x: slot.x + this.gutter, y: slot.y + BOX / 2, w: slot.w, h: this.line - BOX } : null;
  }

  private font(bold = false): string {
    return `${bold ? "600 " : ""}${this.size}px ${SANS}`;
  }

  private small(): string {
    return `${Math.round(this.size * 0.72)}px ${SANS}`;
  }

  private word(id: number): Word {
    let found = this.words.get(id);
    if (!found) this.words.set(id, (found = spell(piece(this.film!, id), this.film!.special.has(id))));
    return found;
  }

  private layout(film: Film, width: number): void {
    const key = `${width}/${film.S}/${film.T}/${film.raw.model}`;
    if (this.film === film && key === this.laidOutFor) return;
    if (this.film !== film) this.words.clear();
    this.film = film;
    this.laidOutFor = key;
    this.drawnWith = "";
    const narrow = width < 520;
    this.gutter = narrow ? 10 : 92;
    this.size = narrow || film.T > 640 ? 13.5 : film.T > 240 ? 15 : width < 720 ? 14.5 : 16.5;
    this.line = Math.round(this.size * 1.84);
    const context = this.base.getContext("2d")!;
    context.setTransform(1, 0, 0, 1, 0, 0);
    const widths = new Float32Array(film.T);
    const words: Word[] = [];
    const measured = new Map<number, number>();
    const widthOf = (id: number): number => {
      let found = measured.get(id);
      if (found === undefined) {
        const word = this.word(id);
        context.font = word.faint ? this.small() : this.font();
        measured.set(id, (found = context.measureText(word.text).width));
      }
      return found;
    };
    for (let t = 0; t < film.T; t++) {
      const last = film.tokens[film.S * film.T + t];
      // An open place is at least as wide as a mask; a word that was taken back needs its room too.
      let wide = last >= 0 ? widthOf(last) : 0;
      if (t >= film.raw.prompt_length) {
        wide = Math.max(wide, this.size * 1.1);
        for (let s = 0; s <= film.S; s++) {
          const id = film.tokens[s * film.T + t];
          if (id >= 0 && id !== last && !film.masks.has(id)) wide = Math.max(wide, widthOf(id));
        }
      }
      widths[t] = wide;
      words.push(last >= 0 && !film.masks.has(last) ? this.word(last) : { text: "", gap: true, breaks: 0, faint: false });
    }
    this.place = flow(words, widths, { width: width - this.gutter - HANG, line: this.line, space: this.size * 0.2, pad: 2, least: 7 });
    this.labels = film.raw.regions
      .filter((region) => region.name !== "bos" && region.start < Math.min(region.end, film.T))
      .map((region) => ({ ...region, y: this.place.slots[region.start].y }));
    // Regions that begin in one line have their labels below each other.
    for (let i = 1; i < this.labels.length; i++) this.labels[i].y = Math.max(this.labels[i].y, this.labels[i - 1].y + LABEL);
    if (this.gutter > 40) this.place.height = Math.max(this.place.height, ...this.labels.map((label) => label.y + this.line));
    this.levels = new Uint8Array(film.T);
    this.shadeKeys = new Int32Array(film.T).fill(-1);
    this.glyphKeys = new Float64Array(film.T).fill(-1);
  }

  /** Bring a token into sight, where the text is longer than its frame. */
  private reveal(position: number): void {
    const box = this.boxOf(position);
    if (!box) return;
    const { scrollTop, clientHeight } = this.element;
    if (box.y < scrollTop || box.y + box.h > scrollTop + clientHeight) this.element.scrollTop = box.y - clientHeight / 2;
  }

  private revealed: number | null = null;
  private step = -1;

  draw(view: View, width: number): void {
    const { film, palette } = view;
    const another = this.film?.raw.prompt_length !== film.raw.prompt_length || this.film.T !== film.T;
    this.layout(film, width);
    const height = Math.max(this.line, this.place.height + 4);
    const shades = resize(this.base, width, height);
    const glyphs = resize(this.glyphs, width, height);
    const values = shading(view);
    const anchors = anchorsOf(view);
    const dressed = `${palette.dark}/${view.colour}/${sizeOf(this.base)}`;
    if (dressed !== this.drawnWith) {
      this.drawnWith = dressed;
      this.shadeKeys.fill(-1);
      this.glyphKeys.fill(-1);
      shades.fillStyle = palette.paper;
      shades.fillRect(0, 0, width, height);
      glyphs.clearRect(0, 0, width, height);
      this.drawGutter(shades, view);
    }
    levels(values, film.counts[view.step] || 1, view.row ? view.rowPeak : view.peak, this.levels);
    for (let t = 0; t < film.T; t++) {
      const look = this.look(view, t, anchors);
      const shadeKey = look.hued ? look.shade + 256 * (look.masked ? 1 : 0) : look.shade;
      if (shadeKey !== this.shadeKeys[t]) {
        this.shadeKeys[t] = shadeKey;
        this.drawShade(shades, t, look.colour, palette.paper);
      }
      const glyphKey = ((((look.id + 1) * 32 + look.sure) * 2 + (look.fresh ? 1 : 0)) * 2 + (look.revised ? 1 : 0)) * 8 + (look.anchor ? 4 : 0) + (look.plain ? 0 : 2) + (look.ink === palette.ink ? 1 : 0);
      if (glyphKey !== this.glyphKeys[t]) {
        this.glyphKeys[t] = glyphKey;
        const slot = this.place.slots[t];
        glyphs.clearRect(slot.x + this.gutter - 0.5, slot.y, slot.w + 1, this.line);
        this.drawGlyph(glyphs, view, t, look);
      }
    }
    this.drawOver(view, width, height, values);
    // A film is about what is written: that line stays in sight, once its frame has a size, which in a notebook comes later.
    // A token that is chosen elsewhere is brought into sight.
    if (another) this.step = -1;
    if (this.element.clientHeight && view.step !== this.step) {
      this.step = view.step;
      const written = film.raw.committed_at.lastIndexOf(film.raw.steps[view.step]);
      this.reveal(written < 0 ? film.T - 1 : written);
    }
    if (view.pin !== this.revealed) {
      this.revealed = view.pin;
      if (view.pin !== null) this.reveal(view.pin);
    }
  }

  /** Draw all of it at once on any pen, as wide as told; returns the height. */
  picture(pen: Pen, view: View, width: number): number {
    const { film } = view;
    this.layout(film, width);
    const values = shading(view);
    const anchors = anchorsOf(view);
    levels(values, film.counts[view.step] || 1, view.row ? view.rowPeak : view.peak, this.levels);
    this.drawGutter(pen, view);
    for (let t = 0; t < film.T; t++) {
      const look = this.look(view, t, anchors);
      const box = this.boxOf(t)!;
      if (look.shade) {
        pen.fillStyle = look.colour;
        roundRect(pen, box.x, box.y, box.w, box.h, 1.5);
        pen.fill();
      }
      this.drawGlyph(pen, view, t, look);
    }
    this.drawMarks(pen, view, values);
    return this.heightFor(film, width);
  }

  /** Height of a film's text, laid out as wide as told. */
  heightFor(film: Film, width: number): number {
    this.layout(film, width);
    return Math.max(this.line, this.place.height + 4);
  }

  /** How a token looks at the step: its shade, its ink, and what is drawn on it. */
  private look(view: View, t: number, anchors: Uint8Array | null): Look {
    const { film, palette } = view;
    const id = tokenAfter(film, view.step, t);
    const masked = film.masks.has(id);
    const hue = view.colour === "attention" ? null : tint(view.colour === "region" ? regionColourAt(film, t, palette.dark) : kindColour(masked ? "mask" : film.raw.kinds[t], palette.dark), palette);
    // 64 shades are as many as the eye tells apart, and leave more tokens as they are.
    const shade = id < 0 || this.levels[t] < 5 ? 0 : this.levels[t] & ~3;
    const confidence = masked ? film.confidence[view.step * film.T + t] : 0;
    return {
      id,
      masked,
      hued: hue !== null,
      shade,
      colour: shade ? (hue ? hue.ramp : palette.ramp)[shade] : palette.paper,
      ink: shade ? (hue ? hue.ink : palette.ink_on)[shade] : palette.ink,
      plain: shade <= 40,
      fresh: id !== tokenBefore(film, view.step, t),
      revised: !masked && isRevised(film, view.step, t),
      anchor: bit(anchors, t),
      sure: confidence > 0 ? Math.round(confidence * 20) : 0,
    };
  }

  /** The box behind a token: a rectangle with its corners taken off, since rounded paths are slow without a graphics card. */
  private drawShade(context: CanvasRenderingContext2D, t: number, colour: string, paper: string): void {
    const slot = this.place.slots[t];
    const x = Math.round(slot.x + this.gutter);
    const y = Math.round(slot.y + BOX / 2);
    const w = Math.round(slot.x + this.gutter + slot.w) - x;
    const tall = this.line - BOX;
    context.fillStyle = colour;
    context.fillRect(x, y, w, tall);
    if (colour === paper) return;
    context.fillStyle = paper;
    context.fillRect(x, y, 1, 1);
    context.fillRect(x + w - 1, y, 1, 1);
    context.fillRect(x, y + tall - 1, 1, 1);
    context.fillRect(x + w - 1, y + tall - 1, 1, 1);
  }

  private drawGlyph(context: Pen, view: View, t: number, look: Look): void {
    const { palette } = view;
    const { id } = look;
    const slot = this.place.slots[t];
    const x = slot.x + this.gutter;
    const y = slot.y + BOX / 2;
    const tall = this.line - BOX;
    if (id < 0) {
      context.fillStyle = palette.line;
      context.fillRect(x + slot.w / 2 - 1, y + tall / 2 - 1, 2, 2);
      return;
    }
    if (look.masked) {
      const bar = Math.max(6, Math.round(tall * 0.36));
      const top = y + (tall - bar) / 2;
      context.fillStyle = palette.mask;
      roundRect(context, x + 2, top, slot.w - 4, bar, 2.5);
      context.fill();
      if (look.sure > 0) {
        context.fillStyle = palette.maskFill;
        roundRect(context, x + 2, top, Math.max(3, ((slot.w - 4) * look.sure) / 20), bar, 2.5);
        context.fill();
      }
    } else {
      const word = this.word(id);
      context.font = word.faint ? this.small() : this.font(look.fresh);
      context.fillStyle = look.plain ? (look.fresh ? palette.fresh : word.faint ? palette.faint : palette.ink) : look.ink;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(word.text, x + slot.w / 2, y + tall / 2 + 0.5, slot.w);
      if (look.fresh) {
        context.fillStyle = palette.fresh;
        context.fillRect(x + 1, y + tall - 2, slot.w - 2, 2);
      } else if (look.revised) {
        context.fillStyle = look.plain ? palette.fresh : look.ink;
        for (let dash = 1; dash < slot.w - 2; dash += 5) context.fillRect(x + dash, y + tall - 2, Math.min(3, slot.w - 2 - dash), 2);
      }
    }
    if (look.anchor) {
      context.strokeStyle = palette.anchor;
      context.lineWidth = 2;
      roundRect(context, x + 1, y + 1, slot.w - 2, tall - 2, 3);
      context.stroke();
    }
  }

  private drawGutter(context: Pen, view: View): void {
    const { film, palette } = view;
    const slots = this.place.slots;
    for (const region of this.labels) {
      const first = slots[region.start];
      const end = slots[Math.min(region.end, film.T) - 1];
      const kind = regionKind(region.name, film.raw.gold);
      context.fillStyle = regionColour(kind, palette.dark);
      context.fillRect(this.gutter - 9, first.y + BOX / 2, 2.5, end.y - first.y + this.line - BOX);
      if (this.gutter <= 40) continue;
      context.font = `${kind === "gold" ? "600 " : ""}11px ${SANS}`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(kind === "gold" ? `${region.name} gold` : region.name, this.gutter - 16, region.y + this.line / 2);
    }
  }

  private overFor = "";
  private drawOver(view: View, width: number, height: number, values: Float32Array | null): void {
    const { palette } = view;
    const key = `${view.pin}/${view.hover?.position}/${sizeOf(this.base)}/${palette.dark}/${this.laidOutFor}`;
    if (key === this.overFor && !view.row) return;
    this.overFor = view.row ? "" : key;
    // An empty sheet would still be laid over the others in each frame.
    this.over.hidden = view.pin === null && (view.hover?.position ?? null) === null;
    if (this.over.hidden) return;
    const context = resize(this.over, width, height);
    context.clearRect(0, 0, width, height);
    this.drawMarks(context, view, values);
  }

  /** The selected token, the one under the cursor, and the links of the first. */
  private drawMarks(context: Pen, view: View, values: Float32Array | null): void {
    if (view.pin !== null && view.row && values) this.drawArcs(context, view, view.pin, values);
    const ring = (t: number | null | undefined, wide: number) => {
      const box = t === null || t === undefined ? null : this.boxOf(t);
      if (!box) return;
      context.strokeStyle = view.palette.ink;
      context.lineWidth = wide;
      roundRect(context, box.x - 1.5, box.y - 1.5, box.w + 3, box.h + 3, 4);
      context.stroke();
    };
    ring(view.pin, 2);
    if (view.hover?.position !== view.pin) ring(view.hover?.position, 1.25);
  }

  /** The strongest links of the chosen token, as curves whose width is the attention. */
  private drawArcs(context: Pen, view: View, from: number, values: Float32Array): void {
    const start = this.boxOf(from);
    if (!start) return;
    const order = Array.from(values.keys())
      .filter((t) => t !== from && values[t] > 0)
      .sort((a, b) => values[b] - values[a])
      .slice(0, ARCS);
    const most = values[order[0]] || 1;
    context.strokeStyle = view.palette.anchor;
    context.lineCap = "round";
    for (const t of order) {
      const end = this.boxOf(t)!;
      const share = values[t] / most;
      const [x1, y1] = [start.x + start.w / 2, start.y + (end.y < start.y ? 0 : start.h)];
      const [x2, y2] = [end.x + end.w / 2, end.y + (end.y < start.y ? end.h : 0)];
      context.globalAlpha = 0.15 + 0.6 * share;
      context.lineWidth = 0.75 + 2.75 * share;
      context.beginPath();
      context.moveTo(x1, y1);
      if (end.y === start.y) {
        const lift = Math.min(26, 8 + Math.abs(x2 - x1) / 12);
        context.moveTo(x1, start.y);
        context.bezierCurveTo(x1, start.y - lift, x2, start.y - lift, x2, end.y);
      } else {
        const half = (y1 + y2) / 2;
        context.bezierCurveTo(x1, half, x2, half, x2, y2);
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}

export function roundRect(context: Pick<Pen, "beginPath" | "roundRect">, x: number, y: number, w: number, h: number, r: number): void {
  context.beginPath();
  context.roundRect(x, y, Math.max(0, w), Math.max(0, h), r);
}
