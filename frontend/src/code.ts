/** The films on the screen as code that makes them again: Python, or commands for a shell. */

import type { Film, Request } from "./film.ts";
import type { State } from "./state.ts";

/** Code, or a sentence that says why there is none. */
export type Code = { text: string } | { reason: string };

/** The rules that Python draws unless it is told others. */
const RULES = ["sigma(k=3)", "top(n=1)", "first", "share(eps=0.3)", "excess(eps=3)"];
const COMMON = ["max_new_tokens", "steps", "block_length", "temperature", "seed"]; // settings that all samplers share
const FLAGS = ["max_new_tokens", "steps", "seed"]; // those that are options of the command line
const SIGNS = { revision: "@", adapter: "+", family: ":", mode: ":" }; // options of loading that a name may have
const LOADING = [...Object.keys(SIGNS), "sampler", "dtype"]; // options of loading that the command line has
const TEMPLATES = "from floatlens.data.template import parse";
const UNKNOWN = "This film has no record of how it was made; trace again with this version of FloatLens.";

/** A value as a Python literal. JSON's strings are Python's. */
export function literal(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${literal(key)}: ${literal(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

/** A word as a POSIX shell reads it. */
export const quoted = (word: string): string => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** What is shown, beyond the defaults, as `explore(state=...)` takes it. */
function view(films: Film[], state: State): Record<string, unknown> {
  const found: Record<string, unknown> = { step: state.step };
  if (state.layer !== null) found.layer = state.layer;
  if (state.head !== null) found.head = state.head;
  if (state.rule !== films[0].anchors.keys().next().value) found.rule = state.rule;
  if (state.colour !== "attention") found.colour = state.colour;
  if (state.pin) found.pin = { panel: state.pin.panel, position: state.pin.position };
  if (state.direction) found.direction = state.direction;
  return found;
}

const line = (passage: { title: string; text: string }): string => (passage.title ? `${passage.title}: ${passage.text}` : passage.text);
const golden = (passages: { gold: boolean }[]): number[] => passages.flatMap((passage, i) => (passage.gold ? [i] : []));
const matrices = (film: Film, state: State): boolean => film.attention !== null || state.direction !== null;
const own = (settings: Record<string, unknown>) => Object.entries(settings).filter(([name]) => !COMMON.includes(name));
const common = (settings: Record<string, unknown>) => Object.fromEntries(Object.entries(settings).filter(([name]) => COMMON.includes(name)));
const keywords = (given: Record<string, unknown>): string[] => Object.entries(given).map(([name, value]) => `${name}=${literal(value)}`);

export function asPython(films: Film[], state: State): Code {
  const lines = ["import floatlens as fl", ""];
  const said = new Map<string, string>(); // variables and what they hold
  const define = (name: string, text: string) => {
    if (said.get(name) !== text) lines.push(`${name} = ${text}`);
    said.set(name, text);
  };
  const names = films.length > 1 ? ["first", "second"] : ["trace"];
  for (const [i, film] of films.entries()) {
    const { raw } = film;
    if (!raw.request) return { reason: UNKNOWN };
    const { load, built_from, prompt, settings, replay } = raw.request;
    define("lens", `fl.load(${[literal(raw.model), ...keywords(load)].join(", ")})`);
    const answers = raw.answers.length ? { answers: raw.answers } : {};
    // What `lens.trace` is given, and its other name as one value.
    let given: string, whole: string;
    if (built_from === null) given = whole = ids(prompt!, answers, define);
    else if ("infill" in built_from || "text" in built_from) {
      const [text, build] = "infill" in built_from ? [built_from.infill, "infill_prompt"] : [built_from.text, "text_prompt"];
      define("text", literal(text));
      given = whole = `lens.${build}(text)`;
    } else {
      define("question", literal(raw.question));
      const { passages, order, template } = built_from;
      const texts = passages.map((passage) => `    ${literal(line(passage))},\n`);
      if (passages.length) define("passages", `[\n${texts.join("")}]`);
      const gold = golden(passages);
      const about = keywords({ ...(gold.length ? { gold } : {}), ...answers });
      given = ["question", ...(passages.length ? ["passages"] : []), ...about].join(", ");
      const more = [...(order === "last" ? [] : keywords({ order })), ...(template === undefined ? [] : [`template=parse(${literal(template)})`])];
      if (template !== undefined && !lines.includes(TEMPLATES)) lines.splice(1, 0, TEMPLATES);
      whole = `lens.prompt(${[given, ...more].join(", ")})`;
      if (more.length) given = whole;
    }
    if (replay || given.startsWith("lens.prompt")) {
      define("prompt", whole);
      given = "prompt";
    }
    const sampler = own(settings).length ? { sampler: Object.fromEntries(own(settings)) } : {};
    const options = keywords({ ...common(settings), ...sampler, ...(matrices(film, state) ? { matrices: ["attention_mean"] } : {}) });
    let call = `lens.trace(${[given, ...options].join(", ")})`;
    if (built_from && "infill" in built_from && !replay) call = `lens.infill(${["text", ...keywords(answers), ...options].join(", ")})`;
    if (replay) {
      define("answer", literal(replay.text !== null && !Object.keys(replay.regions).length ? replay.text : replay.ids));
      const regions = Object.keys(replay.regions).length ? keywords({ regions: replay.regions }) : [];
      const order = replay.order === "left-to-right" ? [] : keywords({ order: replay.order });
      call = `lens.replay(${["prompt", "answer", ...order, ...regions, ...options].join(", ")})`;
    }
    call = `${names[i]} = ${call}`;
    if (raw.interventions.length) lines.push(`with lens.intervene(${raw.interventions.map(literal).join(", ")}):`, `    ${call}`);
    else lines.push(call);
    said.delete("prompt"); // built by this lens only
  }
  const rules = [...films[0].anchors.keys()];
  const custom = rules.length !== RULES.length || rules.some((rule, i) => rule !== RULES[i]);
  const shown = [...names.slice(1), ...keywords({ ...(custom ? { rules } : {}), state: view(films, state) })];
  lines.push(`${names[0]}.explore(${shown.join(", ")})`);
  return { text: `${lines.join("\n")}\n` };
}

/** The tokens of a prompt: a list, or a Prompt if it has more than tokens. */
function ids(prompt: NonNullable<Request["prompt"]>, answers: Record<string, unknown>, define: (name: string, text: string) => void): string {
  define("ids", literal(prompt.ids));
  const regions = prompt.regions.map((region) => `fl.Region(${region.map(literal).join(", ")})`);
  const tail = prompt.tail ? [`tail=(${prompt.tail.join(", ")},)`] : [];
  if (!regions.length && !tail.length && !Object.keys(answers).length) return "ids";
  return `fl.Prompt(${['""', "ids", `[${regions.join(", ")}]`, ...keywords({ ...(prompt.gold.length ? { gold: prompt.gold } : {}), ...answers }), ...tail].join(", ")})`;
}

export function asCommand(films: Film[], state: State): Code {
  const commands: string[][] = [];
  const instead = (why: string): Code => ({ reason: `${why}; copy as Python instead.` });
  for (const [i, film] of films.entries()) {
    const { raw } = film;
    if (!raw.request) return { reason: UNKNOWN };
    const { load, built_from, prompt, settings, replay } = raw.request;
    if (built_from && "order" in built_from && built_from.order !== "last") return instead(`The command line has no option for the order ${built_from.order}`);
    if (built_from && "template" in built_from) return instead("The template of this prompt is not in a file");
    const other = Object.keys(load).find((name) => !LOADING.includes(name));
    if (other) return instead(`The command line has no option for the setting ${other}`);
    const named = Object.entries(SIGNS).map(([name, sign]) => (name in load ? `${sign}${load[name]}` : ""));
    const words = ["floatlens", "trace", raw.model + named.join("")];
    if (built_from === null) {
      if (prompt!.regions.length || prompt!.tail) return instead("No command builds this prompt, which has custom regions");
      words.push("--ids", prompt!.ids.join(","));
    } else if ("infill" in built_from) words.push("--text", built_from.infill);
    else if ("text" in built_from) words.push("--text", built_from.text);
    else {
      words.push("--prompt", raw.question);
      for (const passage of built_from.passages) words.push("--passage", line(passage));
      const gold = golden(built_from.passages);
      if (gold.length) words.push("--gold-at", gold.map((index) => index + 1).join(","));
    }
    if (replay) {
      const { text, order, regions } = replay;
      if (text === null) return instead("The tokenizer encodes the replayed text to other tokens");
      if (Object.keys(regions).length) return instead("The command line has no option for these regions of the replayed text");
      if (built_from && "infill" in built_from) return instead("The command line cannot replay a text with masks");
      words.push("--replay", text);
      if (typeof order !== "string") {
        if (order.some((step) => !step.length)) return instead("The command line cannot express steps that reveal nothing");
        words.push("--sampler-set", `order=${order.map((step) => step.join("+")).join(",")}`);
      } else if (order !== "left-to-right") words.push("--sampler-set", `order=${order}`);
    }
    for (const [name, value] of Object.entries({ ...load, ...settings })) {
      if (name in load && name in SIGNS) continue;
      if (name in load && name === "sampler") words.push("--sampler-set", `name=${value}`);
      else if (name in load || FLAGS.includes(name)) words.push(`--${name.replaceAll("_", "-")}`, String(value));
      else words.push("--sampler-set", `${name}=${value}`);
    }
    for (const spec of raw.interventions) words.push("--intervention", spec);
    if (matrices(film, state)) words.push("--record", "attention_mean");
    words.push("--out", films.length > 1 ? `runs/${i + 1}` : "run");
    commands.push(words);
  }
  commands.push(["floatlens", "explore", films.length > 1 ? "runs" : "run"]);
  return { text: `${commands.map((words) => words.map(quoted).join(" ")).join("\n")}\n` };
}
