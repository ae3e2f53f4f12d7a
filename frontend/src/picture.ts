/** The view as one picture for a paper or a talk: question, films, maps and legend, laid out for a page and not for the screen. */

import { aboutFilm, answerOf, captionsOf, headName, layerName } from "./about.ts";
import { HeadsView, shows } from "./heads.ts";
import { legendOf, type Chip } from "./legend.ts";
import { LayerMap, LEFT, StepMap } from "./maps.ts";
import { shadeOf, ticks } from "./shade.ts";
import type { State } from "./state.ts";
import { browserRuler, SvgPen, type Pen, type Ruler } from "./svg.ts";
import { roundRect, TextView } from "./text.ts";
import { MONO, regionColour, SANS, SERIF, type Palette } from "./theme.ts";
import type { View } from "./view.ts";

const WIDTH = 1280;
const PAD = 28;
const GAP = 36; // between columns
const LARGEST = 16_000; // pixels along one side that every browser can draw

interface Picture {
  width: number;
  height: number;
  paint(pen: Pen): void;
}

/** One column of a picture: things below each other, drawn when the height of all is known. */
class Column {
  readonly draws: ((pen: Pen) => void)[] = [];
  y = 0;

  constructor(
    readonly x: number,
    readonly width: number,
    private readonly ruler: Ruler,
  ) {}

  add(height: number, draw: (pen: Pen) => void): void {
    const top = this.y;
    this.draws.push((pen) => {
      pen.save();
      pen.translate(this.x, top);
      draw(pen);
      pen.restore();
    });
    this.y += height;
  }

  /** A paragraph of runs of text, broken into lines; at most so many. */
  text(runs: { text: string; font: string; colour: string }[], line: number, most = 3, indent = 0): void {
    let x = 0;
    let row = 0;
    const room = this.width - indent;
    const placed: { text: string; font: string; colour: string; x: number; row: number }[] = [];
    for (const { text, font, colour } of runs)
      for (const word of pieces(text, (part) => this.ruler.width(part, font) <= room)) {
        const width = this.ruler.width(word, font);
        if (x > 0 && x + this.ruler.width(word.trimEnd(), font) > room) [x, row] = [0, row + 1];
        if (row >= most) {
          placed.push({ text: "\u2026", font, colour, x: Math.min(placed.at(-1)!.x + this.ruler.width(placed.at(-1)!.text, font), room - 12), row: most - 1 });
          return this.lines(placed, most, line, indent);
        }
        if (x > 0 || word.trim()) {
          placed.push({ text: word, font, colour, x, row });
          x += width;
        }
      }
    this.lines(placed, row + 1, line, indent);
  }

  private lines(placed: { text: string; font: string; colour: string; x: number; row: number }[], rows: number, line: number, indent: number): void {
    // Words of one run on one line are drawn as one text, so that they stay together where fonts differ.
    const joined = placed.reduce<typeof placed>((found, one) => {
      const last = found.at(-1);
      if (last && last.row === one.row && last.font === one.font && last.colour === one.colour) last.text += one.text;
      else found.push({ ...one });
      return found;
    }, []);
    this.add(rows * line, (pen) => {
      pen.textAlign = "left";
      pen.textBaseline = "middle";
      for (const { text, font, colour, x, row } of joined) {
        pen.font = font;
        pen.fillStyle = colour;
        pen.fillText(text.trimEnd(), indent + x, (row + 0.5) * line);
      }
    });
  }
}

/** Words with the space behind them; a word that does not fit a line by itself is cut. */
function pieces(text: string, fits: (part: string) => boolean): string[] {
  return (text.match(/\S+\s*|\s+/g) ?? []).flatMap((word) => {
    if (fits(word.trimEnd())) return [word];
    const found: string[] = [];
    let part = "";
    for (const character of word) {
      if (part && !fits(part + character)) {
        found.push(part);
        part = "";
      }
      part += character;
    }
    return [...found, part];
  });
}

export function layOut(views: View[], state: State, palette: Palette, ruler: Ruler): Picture {
  const inner = WIDTH - 2 * PAD;
  const head = new Column(PAD, inner, ruler);
  head.y = PAD;
  const question = views[0].film.raw.question;
  if (question) head.text([{ text: question, font: `25px ${SERIF}`, colour: palette.ink }], 32, 4);
  head.text([{ text: whereOf(views[0], state), font: `13px ${SANS}`, colour: palette.soft }], 20);
  const top = head.y + 14;
  const columns: Column[] = [head];
  const column = (x: number, width: number, y: number) => {
    const made = new Column(x, width, ruler);
    made.y = y;
    columns.push(made);
    return made;
  };
  let bottom: number;
  if (views.length > 1) {
    const width = (inner - GAP) / 2;
    const sides = views.map((view, i) => ({ view, side: column(PAD + i * (width + GAP), width, top) }));
    const level = () => {
      const y = Math.max(...sides.map(({ side }) => side.y));
      for (const { side } of sides) side.y = y;
    };
    for (const { view, side } of sides) header(side, view, palette);
    level();
    for (const { view, side } of sides) text(side, view);
    level();
    for (const { view, side } of sides) figures(side, view, palette);
    level();
    bottom = sides[0].side.y;
  } else {
    const [view] = views;
    const across = column(PAD, inner, top);
    header(across, view, palette);
    const left = column(PAD, Math.round(((inner - GAP) * 1.22) / 2.22), across.y);
    const right = column(PAD + left.width + GAP, inner - GAP - left.width, across.y);
    text(left, view);
    figures(right, view, palette);
    bottom = Math.max(left.y, right.y);
  }
  const foot = column(PAD, inner, bottom + 10);
  legend(foot, views, state, palette, ruler);
  const height = Math.ceil(foot.y + PAD - 8);
  return {
    width: WIDTH,
    height,
    paint(pen) {
      pen.fillStyle = palette.paper;
      pen.fillRect(0, 0, WIDTH, height);
      for (const one of columns) for (const draw of one.draws) draw(pen);
    },
  };
}

/** Where in the film the picture was taken. */
function whereOf(view: View, state: State): string {
  const { film } = view;
  const steps = film.raw.steps;
  const parts = [`step ${steps[view.step]} of ${steps[film.S - 1]}`, layerName(film, view.layer)];
  if (view.head !== null) parts.push(headName(film, view.head));
  return [...parts, `anchors by ${state.rule}`].join(" \u00b7 ");
}

function header(column: Column, view: View, palette: Palette): void {
  const { output, correct, expected, interventions } = answerOf(view.film);
  const soft = (text: string) => ({ text, font: `13px ${SANS}`, colour: palette.soft });
  const said = (text: string) => ({ text: `\u201c${text}\u201d`, font: `15px ${SERIF}`, colour: palette.ink });
  column.text([{ text: `${view.film.raw.model}  `, font: `600 14px ${SANS}`, colour: palette.ink }, soft(aboutFilm(view.film))], 20);
  const answer = output ? [soft("wrote "), said(output), ...(correct ? [{ ...soft(" \u2713 correct"), colour: palette.fresh }] : [])] : [];
  if (expected) answer.push(soft(`${output ? "   " : ""}expected `), said(expected));
  if (answer.length) column.text(answer, 22);
  if (interventions) column.text([{ text: interventions, font: `12px ${MONO}`, colour: palette.anchor }], 18);
  column.y += 12;
}

function text(column: Column, view: View): void {
  const made = new TextView({ hover() {}, click() {} });
  column.add(made.heightFor(view.film, column.width), (pen) => void made.picture(pen, view, column.width));
  column.y += 14;
}

function figures(column: Column, view: View, palette: Palette): void {
  const still = { hover() {}, click() {} };
  const captions = captionsOf(view);
  const figure = (i: number, height: number, draw: (pen: Pen) => void) => {
    const [name, where] = captions[i];
    column.text([{ text: `${name}  `, font: `600 13px ${SANS}`, colour: palette.ink }, { text: where, font: `13px ${SANS}`, colour: palette.soft }], 22, 2, LEFT);
    column.add(height, draw);
    column.y += 12;
  };
  const maps = [new LayerMap("layers", still), new StepMap("steps", still)];
  maps.forEach((map, i) => figure(i, map.heightFor(view), (pen) => void map.picture(pen, view, column.width)));
  if (!shows(view)) return;
  const heads = new HeadsView(still);
  figure(2, heads.heightFor(view.film, column.width), (pen) => void heads.picture(pen, view, column.width));
}

function legend(column: Column, views: View[], state: State, palette: Palette, ruler: Ruler): void {
  const { what, peak, chips } = legendOf(views, palette, state);
  const font = `12px ${SANS}`;
  const [wide, line] = [190, 26];
  const width = (name: string) => ruler.width(name, font);
  let [x, y] = [width(what) + 14 + wide + 32, 0];
  const placed = chips.map((chip) => {
    const needed = 22 + width(chip.name) + (chip.sign === "mask" ? 8 : 0);
    if (x + needed > column.width) [x, y] = [0, y + line];
    const place = { chip, x, y };
    x += needed + 18;
    return place;
  });
  column.add(y + line + 12, (pen) => {
    pen.fillStyle = palette.line;
    pen.fillRect(0, 0, column.width, 1);
    pen.save();
    pen.translate(0, 12);
    const write = (name: string, at: number, middle: number, size = 12, align: CanvasTextAlign = "left") => {
      pen.font = `${size}px ${SANS}`;
      pen.fillStyle = palette.soft;
      pen.textAlign = align;
      pen.textBaseline = "middle";
      pen.fillText(name, at, middle);
    };
    write(what, 0, 10);
    const left = width(what) + 14;
    for (let i = 0; i < 95; i++) {
      pen.fillStyle = palette.ramp[Math.round((i / 94) * 255)];
      pen.fillRect(left + i * 2, 2, 2.3, 8);
    }
    pen.strokeStyle = palette.line;
    pen.lineWidth = 1;
    pen.strokeRect(left - 0.5, 1.5, wide + 1.3, 9);
    for (const tick of ticks(peak)) write(`${tick}\u00d7`, left + shadeOf(tick, peak) * wide, 17, 10, "center");
    for (const { chip, x: at, y: row } of placed) {
      const swatch = sign(pen, chip, at, row + 4, palette);
      write(chip.name, at + swatch + 6, row + 10);
    }
    pen.restore();
  });
}

/** Draw the sign of a chip; returns its width. */
function sign(pen: Pen, chip: Chip, x: number, y: number, palette: Palette): number {
  const box = (w: number, h: number, r: number, colour: string) => {
    pen.fillStyle = colour;
    roundRect(pen, x, y + (12 - h) / 2, w, h, r);
    pen.fill();
  };
  if (chip.sign === "mask") {
    box(22, 8, 3, palette.mask);
    box(10, 8, 3, palette.maskFill);
    return 22;
  }
  if (chip.sign === "fresh") {
    pen.fillStyle = palette.fresh;
    pen.fillRect(x, y + 10, 14, 2);
  } else if (chip.sign === "anchor") {
    pen.strokeStyle = palette.anchor;
    pen.lineWidth = 2;
    roundRect(pen, x + 1, y, 12, 11, 2);
    pen.stroke();
  } else box(14, 10, 2, chip.colour ?? regionColour("other", palette.dark));
  return 14;
}

/** The view as a PNG file, twice as sharp as a screen, or as sharp as a canvas can be. */
export async function asPng(views: View[], state: State, palette: Palette): Promise<Blob> {
  const made = layOut(still(views), state, palette, browserRuler());
  const scale = Math.min(2, LARGEST / made.height);
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(made.width * scale);
  canvas.height = Math.round(made.height * scale);
  const context = canvas.getContext("2d")!;
  context.scale(scale, scale);
  made.paint(context);
  return new Promise((done, fail) =>
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("The browser cannot make a picture of this size; save as SVG instead."))), "image/png"),
  );
}

/** The view as an SVG file: words and marks as shapes, the cells of the maps as pictures. */
export function asSvg(views: View[], state: State, palette: Palette): Blob {
  const ruler = browserRuler();
  const made = layOut(still(views), state, palette, ruler);
  const pen = new SvgPen(ruler, SANS);
  made.paint(pen);
  return new Blob([pen.file(made.width, made.height, views[0].film.raw.question)], { type: "image/svg+xml" });
}

/** A picture has no cursor. */
const still = (views: View[]): View[] => views.map((view) => ({ ...view, hover: null }));
