/** The films on the screen as code that makes them again: Python, or commands for a shell. */

import type { Film } from "./film.ts";
import type { State } from "./state.ts";

/** Code, or a sentence that says why there is none. */
export type Code = { text: string } | { reason: string };

/** The rules that Python draws unless it is told others. */
const RULES = ["sigma(k=3)", "top(n=1)", "first", "share(eps=0.3)", "excess(eps=3)"];
const OPTIONS = ["max_new_tokens", "steps", "block_length", "temperature", "seed"]; // settings that the command line has
const UNKNOWN = "This film does not say how it was made; trace again with this version of FloatLens.";

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
const promptIds = (film: Film): number[] => Array.from(film.tokens.subarray(0, film.raw.prompt_length));
const golden = (passages: { gold: boolean }[]): number[] => passages.flatMap((passage, i) => (passage.gold ? [i] : []));
const matrices = (film: Film, state: State): boolean => film.attention !== null || state.direction !== null;

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
    const { revision, built_from, settings } = raw.request;
    define("lens", `fl.load(${literal(raw.model)}${revision ? `, revision=${literal(revision)}` : ""})`);
    const options = { ...settings, ...(matrices(film, state) ? { matrices: ["attention_mean"] } : {}) };
    let prompt = "ids";
    if (built_from === null) define("ids", literal(promptIds(film)));
    else {
      define("question", literal(raw.question));
      const { passages, order } = built_from;
      const texts = passages.map((passage) => `    ${literal(line(passage))},\n`);
      if (passages.length) define("passages", `[\n${texts.join("")}]`);
      const gold = golden(passages);
      const about = { ...(gold.length ? { gold } : {}), ...(raw.answers.length ? { answers: raw.answers } : {}) };
      prompt = ["question", ...(passages.length ? ["passages"] : []), ...keywords(about)].join(", ");
      if (order !== "last") {
        define("prompt", `lens.prompt(${prompt}, order=${literal(order)})`);
        prompt = "prompt";
      }
    }
    const call = `${names[i]} = lens.trace(${[prompt, ...keywords(options)].join(", ")})`;
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

const keywords = (given: Record<string, unknown>): string[] => Object.entries(given).map(([name, value]) => `${name}=${literal(value)}`);

export function asCommand(films: Film[], state: State): Code {
  const commands: string[][] = [];
  for (const [i, film] of films.entries()) {
    const { raw } = film;
    if (!raw.request) return { reason: UNKNOWN };
    const { revision, built_from, settings } = raw.request;
    if (built_from === null) return { reason: "No command builds this prompt: it was not made from a question with the default template. Copy as Python instead." };
    if (built_from.order !== "last") return { reason: `The command line has no option for the order ${built_from.order}; copy as Python instead.` };
    const other = Object.keys(settings).find((name) => !OPTIONS.includes(name));
    if (other) return { reason: `The command line has no option for the setting ${other}; copy as Python instead.` };
    const words = ["floatlens", "trace", raw.model, "--prompt", raw.question];
    if (revision) words.push("--revision", revision);
    for (const passage of built_from.passages) words.push("--passage", line(passage));
    for (const gold of golden(built_from.passages)) words.push("--gold", String(gold));
    for (const answer of raw.answers) words.push("--answer", answer);
    for (const [name, value] of Object.entries(settings)) words.push(`--${name.replaceAll("_", "-")}`, String(value));
    for (const spec of raw.interventions) words.push("--intervention", spec);
    if (matrices(film, state)) words.push("--matrices", "attention_mean");
    words.push("--out", films.length > 1 ? `runs/${i + 1}` : "run");
    commands.push(words);
  }
  commands.push(["floatlens", "explore", films.length > 1 ? "runs" : "run"]);
  return { text: `${commands.map((words) => words.map(quoted).join(" ")).join("\n")}\n` };
}
