/**
 * A film as it comes from Python, and as it is drawn.
 *
 * Shape letters as in Python: S step, L layer, H head, T position. A step is an index into the film; `film.steps` has the
 * number that the model's run gave it. Anchors were found by Python's rules; here are only their bits.
 */

export interface Packed {
  dtype: "float16" | "int32" | "uint8";
  shape: number[];
  data: string;
}

export interface Region {
  name: string;
  start: number;
  end: number;
}

/** A question with its passages, a raw text, or a text with masks. */
export type BuiltFrom = { passages: { title: string; text: string; gold: boolean }[]; order: string; template?: string } | { text: string } | { infill: string };

/** A given answer; `text` is null where the tokenizer would make other tokens of it. */
export interface Replay {
  text: string | null;
  ids: number[];
  order: string | number[][];
  regions: Record<string, [number, number]>;
}

/** What was asked of the model, as far as it takes to ask again. */
export interface Request {
  load: Record<string, unknown>; // options of fl.load
  built_from: BuiltFrom | null; // null: only its tokens say what the prompt is
  prompt: { ids: number[]; tail: number[] | null; regions: [string, number, number][]; gold: number[] } | null; // its tokens then
  settings: Record<string, unknown>; // of the sampler
  replay: Replay | null; // null: the model wrote the answer itself
}

export interface RawFilm {
  format: string;
  id: string;
  model: string;
  family: string;
  diffusion: boolean;
  question: string;
  output: string;
  answers: string[];
  prompt_length: number;
  layers: number[];
  heads: number;
  head_numbers?: number[];
  steps: number[];
  vocabulary: Record<string, string>;
  special_ids: number[];
  mask_ids?: number[];
  tokens: Packed;
  committed_at: number[];
  revised?: number[] | null; // how often each position received another token, where the sampler may do that
  confidence: Packed;
  regions: Region[];
  gold: string[];
  kinds: string[];
  kind_groups?: Record<string, string>;
  received: Packed;
  received_all?: Packed;
  received_heads: Packed | null;
  head_steps?: number[];
  attention: Packed | null;
  attention_steps?: number[];
  drift?: Packed | null; // S × L × T: relative change of keys and values since the step before, where it was recorded
  moved?: Packed | null; // S × L: share of the attention that moved since the step before
  anchors: Record<string, Packed>;
  anchors_all?: Record<string, Packed>;
  interventions: string[];
  request?: Request | null;
  thinned: string[] | null;
}

export interface Film {
  raw: RawFilm;
  S: number;
  L: number;
  H: number;
  T: number;
  tokens: Int32Array; // (S + 1) × T
  confidence: Float32Array; // S × T
  received: Float32Array; // S × L × T
  receivedAll: Float32Array; // S × T
  heads: Float32Array | null; // S' × L × H × T
  headSteps: number[];
  attention: Float32Array | null; // S'' × L × T × T
  attentionSteps: number[];
  drift: Float32Array | null; // S × L × T
  moved: Float32Array | null; // S × L
  anchors: Map<string, Uint8Array>; // S × L × ceil(T / 8)
  anchorsAll: Map<string, Uint8Array>; // S × ceil(T / 8)
  counts: Int32Array; // positions that exist at each step
  special: Set<number>;
  masks: Set<number>;
  regionOf: Int16Array; // T, -1 for the template's own
  peak: number; // the most that a position receives, in multiples of the uniform share
}

const HALVES = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) HALVES[bits] = half(bits);

/** The number that 16 bits of IEEE 754 stand for. */
export function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

function bytes(base64: string): Uint8Array {
  const text = atob(base64);
  const found = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) found[i] = text.charCodeAt(i);
  return found;
}

export function floats(packed: Packed): Float32Array {
  const raw = new Uint16Array(bytes(packed.data).buffer);
  const found = new Float32Array(raw.length);
  for (let i = 0; i < raw.length; i++) found[i] = HALVES[raw[i]];
  return found;
}

export const integers = (packed: Packed): Int32Array => new Int32Array(bytes(packed.data).buffer);
export const bitBytes = (packed: Packed): Uint8Array => bytes(packed.data);

const bitMaps = (given: Record<string, Packed> | undefined): Map<string, Uint8Array> =>
  new Map(Object.entries(given ?? {}).map(([rule, packed]) => [rule, bitBytes(packed)]));

export function decode(raw: RawFilm): Film {
  const received = floats(raw.received);
  const [S, L, T] = raw.received.shape;
  const film: Film = {
    raw,
    S,
    L,
    H: raw.heads,
    T,
    tokens: integers(raw.tokens),
    confidence: floats(raw.confidence),
    received,
    receivedAll: raw.received_all ? floats(raw.received_all) : meanOverLayers(received, S, L, T),
    heads: raw.received_heads ? floats(raw.received_heads) : null,
    headSteps: raw.head_steps ?? [],
    attention: raw.attention ? floats(raw.attention) : null,
    attentionSteps: raw.attention_steps ?? [],
    drift: raw.drift ? floats(raw.drift) : null,
    moved: raw.moved ? floats(raw.moved) : null,
    anchors: bitMaps(raw.anchors),
    anchorsAll: bitMaps(raw.anchors_all),
    counts: new Int32Array(S),
    special: new Set(raw.special_ids),
    masks: new Set(raw.mask_ids ?? []),
    regionOf: regionsByPosition(raw.regions, T),
    peak: 0,
  };
  measure(film);
  return film;
}

/** Count what exists at each step, and find the peak. */
export function measure(film: Film): void {
  const { S, L, T, received, receivedAll } = film;
  film.peak = 4;
  for (let s = 0; s < S; s++) {
    let count = 0;
    for (let t = 0; t < T; t++) if (receivedAll[s * T + t] === receivedAll[s * T + t]) count++;
    film.counts[s] = count;
    for (let i = s * L * T; i < (s + 1) * L * T; i++) if (received[i] * count > film.peak) film.peak = received[i] * count;
  }
}

export function meanOverLayers(received: Float32Array, S: number, L: number, T: number): Float32Array {
  const found = new Float32Array(S * T);
  for (let s = 0; s < S; s++)
    for (let l = 0; l < L; l++) for (let t = 0; t < T; t++) found[s * T + t] += received[(s * L + l) * T + t] / L;
  return found;
}

export function regionsByPosition(regions: Region[], T: number): Int16Array {
  const found = new Int16Array(T).fill(-1);
  regions.forEach((region, at) => found.fill(at, region.start, Math.min(region.end, T)));
  return found;
}

/** Has a film all of its steps? One that is being written has no packed arrays yet. */
export const complete = (film: Film): boolean => film.raw.received.data !== "";

/** The kept step that is nearest to one that may not have been kept; of two, the earlier. */
export function nearest(kept: number[], step: number): number {
  let best = -1;
  for (let i = 0; i < kept.length; i++) if (best < 0 || Math.abs(kept[i] - step) < Math.abs(kept[best] - step)) best = i;
  return best;
}

/** Received attention (T) at a step; `layer` null is the mean over layers, `head` null the mean over heads. */
export function profile(film: Film, step: number, layer: number | null, head: number | null): Float32Array | null {
  const { L, H, T } = film;
  if (head === null) {
    if (layer === null) return film.receivedAll.subarray(step * T, (step + 1) * T);
    return film.received.subarray((step * L + layer) * T, (step * L + layer + 1) * T);
  }
  const at = nearest(film.headSteps, step);
  if (!film.heads || at < 0) return null;
  const row = (l: number) => film.heads!.subarray(((at * L + l) * H + head) * T, ((at * L + l) * H + head + 1) * T);
  if (layer !== null) return row(layer);
  const mean = new Float32Array(T);
  for (let l = 0; l < L; l++) {
    const values = row(l);
    for (let t = 0; t < T; t++) mean[t] += values[t] / L;
  }
  return mean;
}

export type Change = "drift" | "moved";

/** What changed since the step before (T): of each position its key and value, or of the layer its attention; null if unknown. */
export function changeOf(film: Film, what: Change, step: number, layer: number | null): Float32Array | null {
  const { L, T } = film;
  const found = new Float32Array(T);
  const layers = layer === null ? Array.from({ length: L }, (_, l) => l) : [layer];
  const given = what === "drift" ? film.drift : film.moved;
  if (!given) return null;
  for (let t = 0; t < T; t++) {
    for (const l of layers) found[t] += given[what === "drift" ? (step * L + l) * T + t : step * L + l] / layers.length;
  }
  return found;
}

/** The most that a position receives from one head, in multiples of the uniform share. */
export function headPeak(film: Film, head: number): number {
  let peak = 4;
  const { L, H, T } = film;
  film.headSteps.forEach((step, at) => {
    for (let l = 0; l < L; l++) {
      const start = ((at * L + l) * H + head) * T;
      for (let t = 0; t < T; t++) peak = Math.max(peak, film.heads![start + t] * film.counts[step] || 0);
    }
  });
  return peak;
}

/** Bits of the anchors at a step and layer (null: of the mean over layers), or null where no rule was asked. */
export function anchorBits(film: Film, rule: string, step: number, layer: number | null): Uint8Array | null {
  const width = Math.ceil(film.T / 8);
  const whole = layer === null ? film.anchorsAll.get(rule) : film.anchors.get(rule);
  const row = layer === null ? step : step * film.L + layer;
  return whole ? whole.subarray(row * width, (row + 1) * width) : null;
}

export const bit = (bits: Uint8Array | null, t: number): boolean => bits !== null && (bits[t >> 3] & (1 << (t & 7))) !== 0;

export function anchorPositions(film: Film, rule: string, step: number, layer: number | null): number[] {
  const bits = anchorBits(film, rule, step, layer);
  return Array.from({ length: film.T }, (_, t) => t).filter((t) => bit(bits, t));
}

export type Direction = "from" | "to";

/** Attention of one token, where matrices were kept: its row ("from") or its column ("to"); null elsewhere. */
export function attentionOf(film: Film, step: number, layer: number | null, position: number, direction: Direction): Float32Array | null {
  const at = nearest(film.attentionSteps, step);
  if (!film.attention || at < 0) return null;
  const { L, T } = film;
  const layers = layer === null ? Array.from({ length: L }, (_, l) => l) : [layer];
  const found = new Float32Array(T);
  for (const l of layers) {
    const start = (at * L + l) * T * T;
    for (let t = 0; t < T; t++) {
      const value = film.attention[start + (direction === "from" ? position * T + t : t * T + position)];
      found[t] += value / layers.length;
    }
  }
  // An autoregressive film keeps one matrix for all steps: a row never changes, but a later one is not there yet.
  if (!film.raw.diffusion) found.fill(NaN, film.counts[step]);
  return found;
}

/** Whether the token after a step is the last of several that were written there. */
export function isRevised(film: Film, step: number, position: number): boolean {
  const { revised, committed_at, steps } = film.raw;
  return (revised?.[position] ?? 0) > 0 && committed_at[position] <= steps[step];
}

/** Id of the token that stands at a position once a step is done. */
export const tokenAfter = (film: Film, step: number, t: number): number => film.tokens[(step + 1) * film.T + t];
/** Id of the token that went into a step. */
export const tokenBefore = (film: Film, step: number, t: number): number => film.tokens[step * film.T + t];
export const piece = (film: Film, id: number): string => (id < 0 ? "" : (film.raw.vocabulary[String(id)] ?? `<${id}>`));
