/** The live panel: a question, passages, settings and interventions; the answer is drawn while it is written. */

import { h, options, setText } from "./dom.ts";
import { decode, type Direction, type Film, type RawFilm } from "./film.ts";
import type { Link } from "./fragment.ts";
import { drawPast, FAILED, STOPPED, WAITING, type Entry } from "./past.ts";
import { Passages } from "./passages.ts";
import { Channel, type Passage, type Run, type Socket } from "./protocol.ts";

export interface LiveModel {
  name: string;
  diffusion?: boolean;
  block_length?: boolean;
  world?: boolean; // trained on the bundled world alone
}

export interface LiveIntervention {
  name: string;
  about?: string;
  example?: string;
  settings?: { name: string; default: string | null; needed: boolean }[];
}

export interface LiveExample {
  name: string;
  question: string;
  passages: Passage[];
  max_new_tokens?: number;
  world?: boolean; // about the bundled world
}

export interface LiveOptions {
  url: string;
  token: string;
  models: (LiveModel | string)[];
  interventions: (LiveIntervention | string)[];
  examples?: LiveExample[];
  limits?: { max_new_tokens?: number; steps?: number; passages?: number; question?: number; passage?: number };
  runs?: { run: number; name: string; samples: { sample: number; id: string; question?: string; model?: string }[] }[];
  film?: string;
  trace?: string;
}

export interface LiveEvents {
  /** A run was started from the form. */
  started(): void;
  films(films: Film[], names: string[]): void;
  grown(film: Film, old: Film): void;
  row(film: Film, key: string, values: Float32Array | string): void;
}

interface Form {
  model: string;
  beside: string; // a second model that gets the same question, or none
  question: string;
  passages: Passage[];
  tokens: string;
  steps: string;
  block: string;
  seed: string;
  on: Record<string, boolean>;
  specs: Record<string, string>;
}

/** From the bundled world, which the bundled models were trained on. */
const QUESTION = "On which day was the ship Golden Otter launched?";
const START: Passage[] = [
  { title: "", text: "The ship Crimson Heron, launched on 8 January 1888, did well.", gold: false },
  { title: "", text: "The Golden Otter was launched on 10 February 1847.", gold: true },
  { title: "", text: "The Lone Crow:\n- launched on 6 June 1816", gold: false },
  { title: "", text: "The Calm Dolphin:\n- launched on 6 March 1842", gold: false },
];
/** First specs of interventions whose defaults alone do nothing. */
const EXAMPLES: Record<string, string> = {
  "mask-anchors": "mask-anchors(rule=top(1))",
  "mask-positions": "mask-positions(region=gold)",
  "ablate-heads": "ablate-heads(heads=top(2))",
  "scale-attention": "scale-attention(factor=0.5, region=gold)",
  "soft-cap": "soft-cap(cap=5)",
};

type Settings = Omit<Run, "type" | "id">;

export class LivePanel {
  readonly element: HTMLElement;
  /** Progress and errors beside the film, for screens where the form is out of sight while the film is read. */
  readonly notice = h("div", { class: "notice" });
  private readonly channel: Channel;
  private readonly models: LiveModel[];
  private readonly interventions: LiveIntervention[];
  private form: Form;
  private asked: { id: number; entry: Entry; changed: boolean }[] = []; // in the order in which they are shown
  private readonly films = new Map<number, Film>();
  private readonly traces = new Map<number, string>(); // keys by run
  private latest: string | null = null; // what was last asked, as text
  private message = "";
  private error = "";
  private history: Entry[] = [];

  private readonly model = h("select", { "aria-label": "Model" });
  private readonly beside = h("select", { "aria-label": "Second model" });
  private readonly example = h("select", { "aria-label": "Example" });
  private readonly question = h("textarea", { rows: 2, "aria-label": "Question" });
  private readonly passages: Passages;
  private readonly tokens = number("New tokens", 1);
  private readonly steps = number("Steps", 1);
  private readonly block = number("Block length", 1);
  private readonly seed = number("Seed", 0);
  private readonly switches = h("div", { class: "switches" });
  private readonly run = h("button", { type: "button", class: "run" }, "Write");
  private readonly stop = h("button", { type: "button" }, "Stop");
  private readonly limit = h("p", { class: "limit", role: "note" });
  private readonly status = h("p", { class: "status", role: "status" });
  private readonly alert = h("p", { class: "error", role: "alert" });
  private readonly noticeText = h("span");
  private readonly noticeStop = h("button", { type: "button" }, "Stop");
  private readonly past = h("table", { class: "past", "aria-label": "Answers so far" });
  private readonly blockLabel: HTMLElement;
  private readonly stepsLabel: HTMLElement;

  constructor(
    private readonly given: LiveOptions,
    private readonly on: LiveEvents,
    connect?: () => Socket,
  ) {
    this.models = given.models.map((m) => (typeof m === "string" ? { name: m } : m));
    this.interventions = given.interventions.map((i) => (typeof i === "string" ? { name: i } : i));
    this.channel = new Channel(connect ?? (() => new WebSocket(address(given)) as unknown as Socket), {
      status: (text) => this.say(text),
      error: (id, message) => this.fail(id, message),
      film: (id, film, old, done) => this.arrived(id, film, old, done),
      trace: (id, key) => void this.traces.set(id, key),
      row: (id, key, values) => {
        const film = this.films.get(id);
        if (film) this.on.row(film, key, values);
      },
    });
    this.form = this.remembered();
    this.passages = new Passages((passages) => this.change({ passages }), given.limits?.passage);
    const field = (name: string, control: HTMLElement) => h("label", {}, name, control);
    this.stepsLabel = field("Steps", this.steps);
    this.blockLabel = field("Block length", this.block);
    const add = h("button", { type: "button", class: "quiet", onclick: () => this.change({ passages: [...this.form.passages, { title: "", text: "", gold: false }] }) }, "Add passage");
    const parts: (HTMLElement | null)[] = this.models.length
      ? [
          h("div", { class: "numbers" }, field("Model", this.model), this.models.length > 1 ? field("Second model", this.beside) : null),
          given.examples?.length ? field("Example", this.example) : null,
          field("Question", this.question),
          this.limit,
          h("div", { class: "group" }, h("span", { class: "name" }, "Passages"), h("span", { class: "hint" }, "drag to reorder, or Alt+\u2191\u2193"), this.passages.element, add),
          h("div", { class: "numbers" }, field("New tokens", this.tokens), this.stepsLabel, this.blockLabel, field("Seed", this.seed)),
          this.interventions.length ? h("div", { class: "group" }, h("span", { class: "name" }, "Interventions"), this.switches) : null,
          h("div", { class: "go" }, this.run, this.stop, this.status, this.alert),
          this.past,
        ]
      : [this.status, this.alert];
    this.notice.append(this.noticeText, this.noticeStop);
    this.element = h("aside", { class: this.models.length ? "live" : "live recorded", "aria-label": "Ask" }, this.chooser(), ...parts.filter((p): p is HTMLElement => p !== null));
    this.wire();
    this.draw();
  }

  state(): Record<string, unknown> {
    return { status: this.message, error: this.error, running: this.channel.running, form: this.form, history: this.history };
  }

  running(): boolean {
    return this.channel.running;
  }

  destroy(): void {
    this.channel.close();
  }

  /** Was a film written here, and not read from a run folder? */
  wrote(film: Film): boolean {
    return this.find(film) !== undefined;
  }

  /** The trace of a film, as the ZIP archive that the server makes of it. */
  async trace(film: Film): Promise<Blob> {
    const id = this.find(film);
    const key = id === undefined ? undefined : this.traces.get(id);
    const sample = (this.given.runs ?? []).flatMap((run) => run.samples.map((one) => ({ ...one, run: run.run }))).find((one) => one.id === film.raw.id && one.model === film.raw.model);
    const query: Record<string, string> | null = key ? { key } : id === undefined && sample ? { run: String(sample.run), sample: String(sample.sample) } : null;
    if (!query || !this.given.trace) throw new Error("The server has not kept the trace of this film; copy as Python to record it.");
    const answer = await fetch(`${this.given.trace}?${new URLSearchParams({ ...query, token: this.given.token })}`);
    if (!answer.ok) throw new Error(((await answer.json()) as { error?: string }).error ?? answer.statusText);
    return answer.blob();
  }

  /** Get the films of a link: run what it asks for, or read what was recorded. False if nothing has to be fetched. */
  open(link: Link): boolean {
    const [first, second] = link.films;
    if (link.run) {
      const { passages, max_new_tokens, steps, block_length, seed } = link.run;
      for (const { model } of link.films)
        if (!this.models.some((known) => known.name === model)) throw new Error(`The link is for the model ${model}, which is not served here.`);
      const specs = link.films.find((film) => film.interventions.length)?.interventions ?? [];
      const named = specs.map((spec): [string, string] => [spec.split("(")[0], spec]);
      const text = (value: number | null) => (value === null ? "" : String(value));
      this.change({
        model: first.model,
        beside: second && second.model !== first.model ? second.model : "",
        question: first.question,
        passages,
        tokens: text(max_new_tokens),
        steps: text(steps),
        block: text(block_length),
        seed: text(seed),
        on: Object.fromEntries(named.map(([name]) => [name, true])),
        specs: { ...this.form.specs, ...Object.fromEntries(named) },
      });
      this.start();
      return true;
    }
    const [runs, where] = [this.given.runs ?? [], this.given.film];
    if (!where || !runs.some((run) => run.samples.some((sample) => sample.id === first.sample))) return false;
    if (this.chosen) this.chosen.value = first.sample;
    void this.read(where, runs, first.sample);
    return true;
  }

  private chosen: HTMLSelectElement | null = null; // of the recorded questions

  private find(film: Film): number | undefined {
    for (const [id, known] of this.films) if (known === film) return id;
    return undefined;
  }

  canAsk(film: Film): boolean {
    const id = this.find(film);
    return id !== undefined && !this.channel.writing(id);
  }

  ask(film: Film, key: string, step: number, layer: number | null, position: number, direction: Direction): void {
    const id = this.find(film);
    if (id !== undefined) this.channel.attention(id, key, step, layer, position, direction);
  }

  // --- the form -----------------------------------------------------------------------------------------------------

  private remembered(): Form {
    const first = this.given.examples?.[0];
    const fresh: Form = {
      model: this.models[0]?.name ?? "",
      beside: "",
      question: first?.question ?? QUESTION,
      passages: (first?.passages ?? START).map((p) => ({ ...p })),
      tokens: String(first?.max_new_tokens ?? 16),
      steps: "",
      block: "",
      seed: "0",
      on: {},
      specs: Object.fromEntries(this.interventions.map((i) => [i.name, beginning(i)])),
    };
    try {
      const kept = JSON.parse(sessionStorage.getItem("floatlens-form") ?? "{}") as Partial<Form>;
      const found = { ...fresh, ...kept, specs: { ...fresh.specs, ...kept.specs } };
      return this.models.some((m) => m.name === found.model) ? found : { ...found, model: fresh.model };
    } catch {
      return fresh; // no storage here, or not ours
    }
  }

  /** Change the form. Nothing is run before Write is pressed: a run may take minutes, and a change seldom comes alone. */
  private change(partial: Partial<Form>): void {
    this.form = { ...this.form, ...partial };
    try {
      sessionStorage.setItem("floatlens-form", JSON.stringify(this.form));
    } catch {
      // a page from disk may have no storage; the form then lasts as long as the page
    }
    this.draw();
  }

  private wire(): void {
    this.model.addEventListener("change", () => this.change({ model: this.model.value }));
    this.beside.addEventListener("change", () => this.change({ beside: this.beside.value }));
    this.example.addEventListener("change", () => {
      const chosen = this.given.examples?.[Number(this.example.value)];
      if (!chosen) return;
      const passages = chosen.passages.map((p) => ({ ...p }));
      this.change({ question: chosen.question, passages, tokens: String(chosen.max_new_tokens ?? this.form.tokens) });
    });
    this.question.addEventListener("input", () => this.change({ question: this.question.value }));
    this.tokens.addEventListener("change", () => this.change({ tokens: this.tokens.value }));
    this.steps.addEventListener("change", () => this.change({ steps: this.steps.value }));
    this.block.addEventListener("change", () => this.change({ block: this.block.value }));
    this.seed.addEventListener("change", () => this.change({ seed: this.seed.value }));
    this.run.addEventListener("click", () => this.start());
    for (const button of [this.stop, this.noticeStop]) button.addEventListener("click", () => this.channel.stop());
    this.question.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        this.start();
      }
    });
    const { limits } = this.given;
    if (limits?.max_new_tokens) this.tokens.max = this.block.max = String(limits.max_new_tokens);
    if (limits?.steps) this.steps.max = String(limits.steps);
    if (limits?.question) this.question.maxLength = limits.question;
  }

  private draw(): void {
    const { form } = this;
    options(this.model, this.models.map((m) => [m.name, m.name]), form.model);
    const others = this.models.filter((m) => m.name !== form.model).map((m): [string, string] => [m.name, m.name]);
    options(this.beside, [["", "none"], ...others], form.beside === form.model ? "" : form.beside);
    const examples = this.given.examples ?? [];
    const at = examples.findIndex((e) => e.question === form.question);
    options(this.example, [["-1", "custom"], ...examples.map((e, i): [string, string] => [String(i), `${e.name}: ${e.question}`])], String(at));
    const model = this.models.find((m) => m.name === form.model);
    this.stepsLabel.hidden = model?.diffusion === false;
    this.blockLabel.hidden = model?.diffusion === false || model?.block_length === false;
    const small = this.models.filter((m) => m.world && (m.name === form.model || m.name === form.beside)).map((m) => m.name);
    this.limit.hidden = !small.length || examples[at]?.world === true || form.question === QUESTION;
    setText(this.limit, `${small.join(" and ")} ${small.length > 1 ? "know" : "knows"} only the small world of the examples, not the real one.`);
    const fill = (control: HTMLInputElement | HTMLTextAreaElement, value: string) => {
      if (control.value !== value) control.value = value;
    };
    fill(this.question, form.question);
    fill(this.tokens, form.tokens);
    fill(this.steps, form.steps);
    fill(this.block, form.block);
    fill(this.seed, form.seed);
    this.steps.placeholder = form.tokens;
    this.block.placeholder = form.tokens;
    this.passages.draw(form.passages);
    this.drawSwitches();
    this.drawStatus();
  }

  private drawSwitches(): void {
    if (!this.switches.children.length)
      for (const known of this.interventions) {
        const box = h("input", { type: "checkbox", "data-intervention": known.name });
        const spec = h("input", { type: "text", class: "spec", spellcheck: "false", "aria-label": `Settings of ${known.name}` });
        box.addEventListener("change", () => this.change({ on: { ...this.form.on, [known.name]: box.checked } }));
        spec.addEventListener("change", () => this.change({ specs: { ...this.form.specs, [known.name]: spec.value } }));
        this.switches.append(h("div", { class: "switch" }, h("label", { title: known.about ?? "" }, box, known.name), spec, h("p", { class: "what" }, known.about ?? "")));
      }
    this.interventions.forEach((known, i) => {
      const [box, spec] = this.switches.children[i].querySelectorAll("input");
      box.checked = this.form.on[known.name] ?? false;
      spec.hidden = !box.checked;
      (this.switches.children[i].querySelector(".what") as HTMLElement).hidden = !box.checked;
      if (spec.value !== this.form.specs[known.name]) spec.value = this.form.specs[known.name] ?? known.name;
    });
  }

  private say(text: string): void {
    this.message = text;
    if (!this.channel.running) this.settle(STOPPED);
    this.drawStatus();
  }

  private fail(id: number | null, message: string): void {
    this.error = message;
    const run = this.asked.find((one) => one.id === id);
    if (run) run.entry[run.changed ? "changed" : "original"] = FAILED;
    if (!this.channel.running) {
      this.message = "";
      this.settle(FAILED);
    }
    this.drawStatus();
  }

  /** Let no entry of the table wait for an answer that will not come. */
  private settle(instead: string): void {
    for (const entry of this.history) {
      if (entry.original === WAITING) entry.original = instead;
      if (entry.changed === WAITING) entry.changed = instead;
    }
  }

  private drawStatus(): void {
    const { running } = this.channel;
    const stale = !running && this.latest !== null && this.latest !== JSON.stringify(this.plan());
    const status = stale ? "Press Write to apply the changes." : this.message;
    setText(this.status, status);
    setText(this.alert, this.error);
    this.alert.hidden = !this.error;
    this.stop.hidden = this.noticeStop.hidden = !running;
    setText(this.noticeText, this.error || status);
    this.notice.classList.toggle("error", this.error !== "");
    this.notice.hidden = !running && !this.error;
    drawPast(this.past, this.history);
  }

  // --- running ------------------------------------------------------------------------------------------------------

  /** The runs that the form asks for: as it is, with the interventions that are on, and by the second model. */
  private plan(): { settings: Settings; changed: boolean }[] {
    const { form } = this;
    const common: Omit<Settings, "interventions"> = {
      question: form.question,
      passages: form.passages.map((p) => ({ ...p })),
      max_new_tokens: whole(form.tokens) ?? 16,
      seed: whole(form.seed) ?? 0,
      ...this.fitting(form.model),
    };
    const specs = this.interventions.filter((i) => form.on[i.name]).map((i) => form.specs[i.name]);
    const runs = [{ settings: { ...common, interventions: [] as string[] }, changed: false }];
    if (specs.length) runs.push({ settings: { ...common, interventions: specs }, changed: true });
    if (form.beside && form.beside !== form.model)
      runs.push({ settings: { ...common, ...this.fitting(form.beside), interventions: [] }, changed: false });
    return runs;
  }

  private start(): void {
    const plan = this.plan();
    const text = JSON.stringify(plan);
    if (this.channel.running && text === this.latest) return; // it is being written already
    if (this.channel.running) this.channel.stop();
    this.latest = text;
    this.error = "";
    this.films.clear();
    this.asked = [];
    const places = this.form.passages.flatMap((p, i) => (p.gold ? [i + 1] : []));
    const gold = places.join(", ") || "\u2013";
    for (const { settings, changed } of plan) {
      if (!changed) this.history.push({ model: settings.model, gold, original: WAITING, changed: null, specs: [] });
      const entry = this.history[this.history.length - 1];
      if (changed) Object.assign(entry, { changed: WAITING, specs: settings.interventions });
      this.asked.push({ id: this.channel.run(settings), entry, changed });
    }
    this.on.started();
    this.drawStatus();
  }

  /** A model, with the steps and the block length if its sampler has them. */
  private fitting(name: string): Pick<Run, "model" | "steps" | "block_length"> {
    const model = this.models.find((m) => m.name === name);
    const diffusion = model?.diffusion !== false;
    const blocks = diffusion && model?.block_length !== false;
    return { model: name, steps: diffusion ? whole(this.form.steps) : null, block_length: blocks ? whole(this.form.block) : null };
  }

  private arrived(id: number, film: Film, old: Film | null, done: boolean): void {
    const run = this.asked.find((one) => one.id === id);
    if (!run) return;
    this.films.set(id, film);
    if (old === null) {
      const shown = this.asked.flatMap((one) => this.films.get(one.id) ?? []);
      this.on.films(shown, shown.map((f) => f.raw.model + (f.raw.interventions.length ? ", intervened" : "")));
    } else this.on.grown(film, old);
    if (done) {
      run.entry[run.changed ? "changed" : "original"] = film.raw.output;
      drawPast(this.past, this.history);
    }
  }

  // --- films of run folders -----------------------------------------------------------------------------------------

  private chooser(): HTMLElement | null {
    const runs = this.given.runs ?? [];
    const where = this.given.film;
    const ids = [...new Set(runs.flatMap((run) => run.samples.map((s) => s.id)))];
    if (!where || !ids.length) return null;
    const questions = new Map(runs.flatMap((run) => run.samples.map((s): [string, string] => [s.id, s.question || s.id])));
    const select = h("select", { "aria-label": "Recorded question" });
    options(select, ids.map((id) => [id, questions.get(id)!]), ids[0]);
    select.addEventListener("change", () => void this.read(where, runs, select.value));
    this.chosen = select;
    return h("label", {}, "Recorded question", select);
  }

  /** Open the films of one question, from every run that has it. */
  private async read(where: string, runs: NonNullable<LiveOptions["runs"]>, id: string): Promise<void> {
    this.error = "";
    this.say("Loading.");
    try {
      const films: Film[] = [];
      for (const run of runs)
        for (const sample of run.samples.filter((s) => s.id === id)) {
          const answer = await fetch(`${where}?run=${run.run}&sample=${sample.sample}&token=${encodeURIComponent(this.given.token)}`);
          const found = (await answer.json()) as RawFilm & { error?: string };
          if (!answer.ok) throw new Error(found.error ?? answer.statusText);
          films.push(decode(found));
        }
      films.sort((a, b) => Number(b.raw.diffusion) - Number(a.raw.diffusion)); // the cursor counts the first one's steps
      this.on.films(films, films.map((f) => f.raw.model));
      this.say("");
    } catch (error) {
      this.fail(null, error instanceof Error ? error.message : String(error));
    }
  }
}

function whole(text: string): number | null {
  return text.trim() === "" ? null : Math.round(Number(text));
}

function address(live: LiveOptions): string {
  const url = new URL(live.url, location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.searchParams.set("token", live.token);
  return url.href;
}

function beginning(known: LiveIntervention): string {
  if (known.example) return known.example;
  if (EXAMPLES[known.name]) return EXAMPLES[known.name];
  const settings = (known.settings ?? []).filter((s) => s.needed || s.default !== null).map((s) => `${s.name}=${s.default ?? ""}`);
  return settings.length ? `${known.name}(${settings.join(", ")})` : known.name;
}

function number(name: string, least: number): HTMLInputElement {
  return h("input", { type: "number", min: least, step: 1, "aria-label": name, inputmode: "numeric" });
}
