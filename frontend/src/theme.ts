/** Colours, light and dark. Ramps are interpolated in Lab, so that equal steps of attention look like equal steps. */

import { lab, rgb } from "d3-color";
import { interpolateLab, piecewise } from "d3-interpolate";
import type { Film } from "./film.ts";
import { LEVELS } from "./shade.ts";

export const SANS = '"Inter", "Helvetica Neue", "Noto Sans", system-ui, -apple-system, "Segoe UI", Arial, sans-serif';
export const SERIF = '"Iowan Old Style", "Palatino Linotype", "Source Serif 4", "Noto Serif", Georgia, serif';
export const MONO = 'ui-monospace, "DejaVu Sans Mono", monospace';

export interface Palette {
  dark: boolean;
  paper: string;
  ink: string;
  soft: string; // for words beside the film
  faint: string;
  line: string;
  mask: string;
  maskFill: string;
  anchor: string;
  fresh: string;
  ramp: string[]; // 256 colours of attention
  ink_on: string[]; // the ink that can be read on each
  pixels: Uint32Array; // the ramp as ImageData wants it
}

const LIGHT = ["#fdfcfa", "#fbe6cc", "#f7b673", "#e2733a", "#a8321f", "#5e1420"];
const DARK = ["#15161a", "#2a1f20", "#7a3420", "#cf6a2c", "#f9b85f", "#fff3d0"];

function ramp(stops: string[]): string[] {
  const blend = piecewise(interpolateLab, stops);
  return Array.from({ length: LEVELS }, (_, i) => rgb(blend(i / (LEVELS - 1))).formatHex());
}

function inkOn(colour: string, dark: string, light: string): string {
  return lab(colour).l > 58 ? dark : light;
}

function pixel(colour: string): number {
  const { r, g, b } = rgb(colour);
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}

function palette(dark: boolean): Palette {
  const colours = ramp(dark ? DARK : LIGHT);
  const ink = dark ? "#ece9e4" : "#1c1b1a";
  return {
    dark,
    paper: dark ? "#15161a" : "#fdfcfa",
    ink,
    soft: dark ? "#9a9ba1" : "#6f6c67",
    faint: dark ? "#85868c" : "#8b8883",
    line: dark ? "#2c2e34" : "#e5e2dc",
    mask: dark ? "#34373f" : "#dedad3",
    maskFill: dark ? "#5b606c" : "#b9b3a9",
    anchor: dark ? "#6db8ff" : "#0a63b0",
    fresh: dark ? "#5fd0a0" : "#0b8457",
    ramp: colours,
    ink_on: colours.map((colour) => inkOn(colour, "#1c1b1a", dark ? "#ece9e4" : "#ffffff")),
    pixels: Uint32Array.from(colours, pixel),
  };
}

const MADE: Record<string, Palette> = {};
export const paletteFor = (dark: boolean): Palette => (MADE[String(dark)] ??= palette(dark));

/** Colours of kinds: structure in blues, content in oranges; the same as in the figures. */
const KINDS: Record<string, [string, string]> = {
  special: ["#5d6f8f", "#8fa3c7"],
  mask: ["#8895ab", "#73829c"],
  newline: ["#4f7fb0", "#7fb2e6"],
  punctuation: ["#2f6fae", "#63a5ea"],
  template: ["#6a8fb5", "#88b4de"],
  function: ["#3f93c9", "#6cc3f5"],
  number: ["#d08a1f", "#f2b84e"],
  name: ["#c2410c", "#ff8a50"],
  content: ["#b5651d", "#e79a58"],
};

export function kindColour(kind: string, dark: boolean): string {
  return (KINDS[kind] ?? ["#8b8883", "#85868c"])[dark ? 1 : 0];
}

/** Colours of regions: what is asked, what was found, what is written. Passages without evidence share one. */
const REGIONS: Record<string, [string, string]> = {
  gold: ["#b8860b", "#e8b93c"],
  doc: ["#4a8f8a", "#6fbdb6"],
  query: ["#7a4fb5", "#b592ea"],
  answer: ["#0b8457", "#5fd0a0"],
  instruction: ["#7d7a76", "#9a9ba1"],
  other: ["#a3a09b", "#74767c"],
};

export function regionKind(name: string, gold: string[]): string {
  if (gold.includes(name)) return "gold";
  if (name.startsWith("doc")) return "doc";
  if (name.startsWith("query")) return "query";
  return name in REGIONS ? name : "other";
}

export const regionColour = (kind: string, dark: boolean): string => REGIONS[kind][dark ? 1 : 0];

export function regionColourAt(film: Film, t: number, dark: boolean): string {
  const region = film.raw.regions[film.regionOf[t]];
  return regionColour(region ? regionKind(region.name, film.raw.gold) : "other", dark);
}

/** A ramp from paper to a colour: the shade of attention when hue means something else. */
const TINTS = new Map<string, { ramp: string[]; ink: string[] }>();
export function tint(colour: string, theme: Palette): { ramp: string[]; ink: string[] } {
  const key = `${colour}${theme.dark}`;
  let made = TINTS.get(key);
  if (!made) {
    const end = theme.dark ? lab(colour).brighter(0.4).formatHex() : lab(colour).darker(0.5).formatHex();
    const blend = piecewise(interpolateLab, [theme.paper, interpolateLab(theme.paper, colour)(0.35), colour, end]);
    const colours = Array.from({ length: LEVELS }, (_, i) => rgb(blend(i / (LEVELS - 1))).formatHex());
    made = { ramp: colours, ink: colours.map((c) => inkOn(c, "#1c1b1a", theme.dark ? "#ece9e4" : "#ffffff")) };
    TINTS.set(key, made);
  }
  return made;
}
