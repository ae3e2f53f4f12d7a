/**
 * From attention to a shade: logarithmic in multiples of the uniform share, so that a sink that takes half of all
 * attention and a word that gets three times its share can both be seen.
 */

export const LEVELS = 256;

const CALM = 1.6; // above 1 keeps what is near the uniform share pale, so that anchors stand out

/** Where a multiple of the uniform share stands between nothing (0) and the largest, `peak` (1). */
export const shadeOf = (multiple: number, peak: number): number => Math.min(1, Math.log1p(multiple) / Math.log1p(peak)) ** CALM;

/** Level 0..255 of a multiple of the uniform share. NaN (not there yet) is level 0. */
export function level(multiple: number, peak: number): number {
  return multiple > 0 ? Math.round(shadeOf(multiple, peak) * (LEVELS - 1)) : 0;
}

/**
 * Levels by the upper half of a float's bits, for one count of positions and one peak: a film has more cells than there
 * is time for logarithms between two frames. The lower bits are worth less than a 128th, a fraction of a level.
 */
const TABLES = new Map<string, Uint8Array>();
const SMALLEST = 103 << 7; // 2 ** -24: float16 has nothing below it
const ENTRIES = 0x4000; // 2.0 and above, and NaN, lie beyond

export function table(count: number, peak: number): Uint8Array {
  const key = `${count}/${peak}`;
  let found = TABLES.get(key);
  if (!found) {
    if (TABLES.size > 600) TABLES.clear();
    found = new Uint8Array(ENTRIES);
    const bits = new Uint32Array(1);
    const value = new Float32Array(bits.buffer);
    for (let i = SMALLEST; i < ENTRIES; i++) {
      bits[0] = (i << 16) | 0x8000;
      found[i] = level(value[0] * count, peak);
    }
    TABLES.set(key, found);
  }
  return found;
}

/** Levels of values, written to `out`; null is nothing everywhere. */
export function levels(values: Float32Array | null, count: number, peak: number, out: Uint8Array): Uint8Array {
  if (!values) return out.fill(0);
  const known = table(count, peak);
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < bits.length; i++) {
    const at = bits[i] >>> 16;
    out[i] = at < ENTRIES ? known[at] : 0;
  }
  return out;
}

/** Levels of changes between 0 and 1 (all of it), written to `out`; null and NaN are nothing. */
export function changeLevels(values: Float32Array | null, out: Uint8Array): Uint8Array {
  if (!values) return out.fill(0);
  for (let i = 0; i < values.length; i++) out[i] = values[i] > 0 ? Math.round(Math.sqrt(Math.min(1, values[i])) * (LEVELS - 1)) : 0;
  return out;
}

/** Round multiples to write under the legend. */
export function ticks(peak: number): number[] {
  const few = peak < 12 ? [1, 2, 5, 10] : peak < 120 ? [1, 5, 20, 50, 100] : [1, 10, 50, 200, 1000, 5000];
  return few.filter((n) => n <= peak);
}

/** A share as a person reads it. */
export function percent(share: number): string {
  if (!(share >= 0)) return "\u2013";
  const value = share * 100;
  return `${value >= 10 ? value.toFixed(0) : value >= 1 ? value.toFixed(1) : value >= 0.01 ? value.toFixed(2) : "<0.01"} %`;
}

export const times = (multiple: number): string => (multiple >= 10 ? multiple.toFixed(0) : multiple.toFixed(1)) + "\u00d7";
