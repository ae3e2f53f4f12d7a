/** The live channel: what is asked of the server, what it says, and a film that grows while it is written. */

import { bitBytes, decode, floats, measure, meanOverLayers, regionsByPosition, type Direction, type Film, type Packed, type RawFilm } from "./film.ts";

export interface Passage {
  title: string;
  text: string;
  gold: boolean;
}

export interface Run {
  type: "run";
  id: number;
  model: string;
  question: string;
  passages: Passage[];
  max_new_tokens: number;
  steps: number | null;
  block_length: number | null;
  seed: number;
  interventions: string[];
}

export interface StepMessage {
  type: "step";
  id: number;
  index: number;
  tokens: number[];
  after: number[];
  confidence: (number | null)[];
  received: Packed;
  received_all?: Packed;
  anchors: Record<string, Packed>;
  anchors_all?: Record<string, Packed>;
  vocabulary?: Record<string, string>;
}

export type Header = Omit<RawFilm, "tokens" | "confidence" | "received" | "anchors" | "committed_at"> & { length: number };

export type Answer =
  | { type: "queued"; id: number; ahead?: number; loading?: boolean }
  | { type: "stopped"; id: number }
  | { type: "start"; id: number; film: Header }
  | StepMessage
  | { type: "done"; id: number; film: RawFilm; trace?: string | null }
  | { type: "attention"; id: number; step: number; layer: number | null; position: number; direction: Direction; values: (number | null)[] }
  | { type: "error"; id: number | null; message: string };

/** A film of which no step is known yet. */
export function begin(header: Header): Film {
  const T = header.length;
  const capacity = Math.max(1, header.steps.length);
  const L = header.layers.length;
  const none: Packed = { dtype: "float16", shape: [0, L, T], data: "" };
  const raw: RawFilm = {
    ...header,
    tokens: none,
    confidence: none,
    received: none,
    received_heads: null,
    attention: null,
    anchors: {},
    committed_at: new Array<number>(T).fill(-1),
  };
  return {
    raw,
    S: 0,
    L,
    H: header.heads,
    T,
    tokens: new Int32Array((capacity + 1) * T).fill(-1),
    confidence: new Float32Array(capacity * T).fill(NaN),
    received: new Float32Array(capacity * L * T).fill(NaN),
    receivedAll: new Float32Array(capacity * T).fill(NaN),
    heads: null,
    headSteps: [],
    attention: null,
    attentionSteps: [],
    drift: null,
    moved: null,
    anchors: new Map(),
    anchorsAll: new Map(),
    counts: new Int32Array(capacity),
    special: new Set(header.special_ids),
    masks: new Set(header.mask_ids ?? []),
    regionOf: regionsByPosition(header.regions, T),
    peak: 4,
  };
}

/** The film with one more step. Arrays are shared with the film before: a step is only ever added at the end. */
export function grow(film: Film, step: StepMessage): Film {
  const { L, T, S } = film;
  const width = Math.ceil(T / 8);
  film.tokens.set(step.tokens, S * T);
  film.tokens.set(step.after, (S + 1) * T);
  film.confidence.set(step.confidence.map((c) => c ?? NaN), S * T);
  const received = floats(step.received);
  film.received.set(received, S * L * T);
  film.receivedAll.set(step.received_all ? floats(step.received_all) : meanOverLayers(received, 1, L, T), S * T);
  const keep = (maps: Map<string, Uint8Array>, given: Record<string, Packed> | undefined, rows: number) => {
    for (const [rule, packed] of Object.entries(given ?? {})) {
      if (!maps.has(rule)) maps.set(rule, new Uint8Array(film.counts.length * rows * width));
      maps.get(rule)!.set(bitBytes(packed), S * rows * width);
    }
  };
  keep(film.anchors, step.anchors, L);
  keep(film.anchorsAll, step.anchors_all, 1);
  step.after.forEach((id, t) => {
    if (id !== step.tokens[t]) film.raw.committed_at[t] = step.index;
  });
  const raw = { ...film.raw, vocabulary: { ...film.raw.vocabulary, ...step.vocabulary } };
  const grown: Film = { ...film, raw, S: S + 1, counts: film.counts };
  measure(grown);
  return grown;
}

export interface Socket {
  send(text: string): void;
  close(): void;
  readyState: number;
  onopen: ((event: never) => void) | null;
  onmessage: ((event: { data: string }) => void) | null;
  onclose: ((event: never) => void) | null;
}

export interface ChannelEvents {
  status(text: string): void;
  /** A run failed, or, without an id, something that belongs to no run. */
  error(id: number | null, message: string): void;
  /** `film` takes the place of `old`; null before a run has started. */
  film(id: number, film: Film, old: Film | null, done: boolean): void;
  /** The server keeps the trace of a run under a key. */
  trace(id: number, key: string): void;
  row(id: number, key: string, values: Float32Array | string): void;
}

/** Talks with the server. The socket is opened when something is asked, and again after it was lost. */
export class Channel {
  private socket: Socket | null = null;
  private waiting: string[] = [];
  private readonly films = new Map<number, Film>();
  private readonly open = new Set<number>();
  private readonly asked = new Set<string>();
  private readonly pending = new Map<string, string>(); // of those asked: key, and what the answer will say it is
  private next = 1;

  constructor(
    private readonly connect: () => Socket,
    private readonly on: ChannelEvents,
  ) {}

  get running(): boolean {
    return this.open.size > 0;
  }

  /** Is a run still being written? Single tokens can be asked about when it is done. */
  writing(id: number): boolean {
    return this.open.has(id);
  }

  run(settings: Omit<Run, "type" | "id">): number {
    const id = this.next++;
    this.open.add(id);
    this.send({ type: "run", id, ...settings });
    this.on.status("Waiting for the server.");
    return id;
  }

  stop(): void {
    for (const id of this.open) this.send({ type: "stop", id });
    this.open.clear();
    this.on.status("Stopped.");
  }

  /** Ask for a row or column of attention; the answer comes with `key`. Asked once. */
  attention(id: number, key: string, step: number, layer: number | null, position: number, direction: Direction): void {
    const name = `${id}/${key}`;
    if (this.asked.has(name)) return;
    this.asked.add(name);
    this.pending.set(name, `${id}/${step}/${layer}/${position}/${direction}`);
    this.send({ type: "attention", id, step, layer, position, direction });
  }

  close(): void {
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  private send(message: object): void {
    const text = JSON.stringify(message);
    if (this.socket && this.socket.readyState === 1) return this.socket.send(text);
    this.waiting.push(text);
    if (this.socket) return;
    const socket = (this.socket = this.connect());
    socket.onopen = () => {
      for (const waiting of this.waiting.splice(0)) socket.send(waiting);
    };
    socket.onmessage = (event) => this.hear(JSON.parse(event.data) as Answer);
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      this.waiting = [];
      const lost = this.open.size > 0;
      this.open.clear();
      if (lost) this.on.error(null, "The connection to the server was lost; press Write to try again.");
    };
  }

  private hear(answer: Answer): void {
    if (answer.type === "attention") {
      const name = `${answer.id}/${answer.step}/${answer.layer ?? null}/${answer.position}/${answer.direction}`;
      for (const [key, asked] of this.pending)
        if (asked === name) this.settle(answer.id, key, Float32Array.from(answer.values, (v) => v ?? NaN));
      return;
    }
    if (answer.type === "error") {
      if (answer.id === null || this.open.delete(answer.id)) return this.on.error(answer.id, answer.message);
      const pending = [...this.pending.keys()].filter((key) => key.startsWith(`${answer.id}/`));
      for (const key of pending) this.settle(answer.id, key, answer.message);
      return; // otherwise it is of a run that was given up
    }
    if (!this.open.has(answer.id)) return; // of a run that was given up
    if (answer.type === "queued") {
      const why = answer.ahead ? `Queued: ${plural(answer.ahead, "run")} ahead.` : answer.loading ? "Loading the model." : "Waiting for the model.";
      return this.on.status(why);
    }
    if (answer.type === "stopped") {
      this.open.delete(answer.id);
      return this.on.status("Stopped.");
    }
    const old = this.films.get(answer.id) ?? null;
    if (answer.type === "start") this.keep(answer.id, begin(answer.film), old, false);
    else if (answer.type === "step" && old) {
      this.keep(answer.id, grow(old, answer), old, false);
      this.on.status(`Writing: step ${answer.index + 1} of ${old.raw.steps.length}.`);
    } else if (answer.type === "done") {
      this.open.delete(answer.id);
      if (answer.trace) this.on.trace(answer.id, answer.trace);
      this.keep(answer.id, decode(answer.film), old, true);
      this.on.status(this.running ? `Done; ${plural(this.open.size, "run")} left.` : "Done.");
    }
  }

  private settle(id: number, key: string, values: Float32Array | string): void {
    this.pending.delete(key);
    this.on.row(id, key.slice(key.indexOf("/") + 1), values);
  }

  private keep(id: number, film: Film, old: Film | null, done: boolean): void {
    this.films.set(id, film);
    this.on.film(id, film, old, done);
  }
}

const plural = (count: number, thing: string): string => `${count} ${thing}${count === 1 ? "" : "s"}`;
