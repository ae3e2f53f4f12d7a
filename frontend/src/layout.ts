/** Where each token stands: words flow in lines as in a book, and no token moves while the film plays. */

import type { Word } from "./words.ts";

export interface Slot {
  x: number;
  y: number; // top of the line
  w: number;
}

export interface Flow {
  slots: Slot[];
  height: number;
  lines: number;
}

export interface Measures {
  width: number;
  line: number; // height of a line
  space: number; // width of the space between words
  pad: number; // between a token's text and the edge of its box
  least: number; // width of the narrowest box
}

/** Lay out tokens. `widths` are those of the words' texts; a word made of several tokens is not torn apart. */
export function flow(words: Word[], widths: ArrayLike<number>, m: Measures): Flow {
  const slots: Slot[] = [];
  const box = (t: number) => Math.min(m.width, Math.max(m.least, widths[t] + 2 * m.pad));
  let x = 0;
  let y = 0;
  let lines = 1;
  let fresh = true;
  const next = (by = 1) => {
    x = 0;
    y += m.line * by;
    lines++;
    fresh = true;
  };
  for (let t = 0; t < words.length; ) {
    let end = t + 1;
    while (end < words.length && !words[end].gap && !words[end].faint && !words[end - 1].faint && !words[end - 1].breaks) end++;
    let total = 0;
    for (let i = t; i < end; i++) total += words[i].breaks && words[i].faint ? 0 : box(i); // a line end hangs in the margin
    const gap = fresh || !words[t].gap ? 0 : m.space;
    if (!fresh && total > 0 && x + gap + total > m.width) next();
    else x += gap;
    for (let i = t; i < end; i++) {
      const w = box(i);
      if (!fresh && x + w > m.width && !(words[i].breaks && words[i].faint)) next();
      slots.push({ x, y, w });
      x += w + 1;
      fresh = false;
      if (words[i].breaks) next(words[i].breaks > 1 ? 1.45 : 1);
    }
    t = end;
  }
  return { slots, height: y + (fresh ? 0 : m.line), lines };
}

/** The token under a point, or -1. */
export function tokenAt(slots: Slot[], line: number, x: number, y: number): number {
  for (let t = 0; t < slots.length; t++) {
    const s = slots[t];
    if (y >= s.y && y < s.y + line && x >= s.x - 1 && x < s.x + s.w + 1) return t;
  }
  return -1;
}
