/** A view as the fragment of an address: which films, where in them, and for a live run what was asked. */

import { nearest, type Direction, type Film } from "./film.ts";
import type { Passage } from "./protocol.ts";
import { COLOURS, MAP_NAMES, mapsOf, type Colour, type Maps, type State } from "./state.ts";

export interface LinkedFilm {
  model: string;
  question: string;
  sample: string; // id of a recorded sample; empty for a live run
  interventions: string[];
}

/** What a live run needs beside model, question and interventions. */
export interface LinkedRun {
  passages: Passage[];
  max_new_tokens: number;
  steps: number | null;
  block_length: number | null;
  seed: number;
}

/** Steps, layers and heads are the model's own numbers, as they are written on the screen. */
export interface Link {
  explorer: string; // id of the element: a page may have several
  films: LinkedFilm[]; // one, or two side by side
  run: LinkedRun | null;
  step: number;
  layer: number | null;
  head: number | null;
  token: number | null; // the selected position
  panel: number; // the film in which it was selected
  direction: Direction | null;
  rule: string;
  colour: Colour;
  maps: Maps; // what shades the maps
}

const headNumbers = (film: Film): number[] => film.raw.head_numbers ?? Array.from({ length: film.H }, (_, head) => head);

/** The link to what is shown. Films that were `written` here are asked for again; recorded ones are found by their sample. */
export function linkTo(explorer: string, films: Film[], state: State, written: boolean): Link {
  const [first] = films;
  const asked = first.raw.request;
  const setting = (name: string) => (asked?.settings[name] as number | undefined) ?? null;
  return {
    explorer,
    films: films.map(({ raw }) => ({ model: raw.model, question: raw.question, sample: written ? "" : raw.id, interventions: raw.interventions })),
    run: written
      ? {
          passages: asked?.built_from && "passages" in asked.built_from ? asked.built_from.passages : [],
          max_new_tokens: setting("max_new_tokens") ?? first.T - first.raw.prompt_length,
          steps: setting("steps"),
          block_length: setting("block_length"),
          seed: setting("seed") ?? 0,
        }
      : null,
    step: first.raw.steps[state.step],
    layer: state.layer === null ? null : first.raw.layers[state.layer],
    head: state.head === null ? null : headNumbers(first)[state.head],
    token: state.pin?.position ?? null,
    panel: state.pin?.panel ?? 0,
    direction: state.direction,
    rule: state.rule,
    colour: state.colour,
    maps: state.maps,
  };
}

/** The state that a link names, among these films, or a sentence that says what is missing. */
export function stateFor(link: Link, films: Film[]): Partial<State> | string {
  const found: number[] = [];
  for (const wanted of link.films) {
    const at = films.findIndex(
      ({ raw }) =>
        raw.model === wanted.model &&
        raw.question === wanted.question &&
        (wanted.sample === "" || raw.id === wanted.sample) &&
        raw.interventions.join("\n") === wanted.interventions.join("\n"),
    );
    if (at < 0) return `The link is for a film of ${wanted.model} that is not on this page.`;
    found.push(at);
  }
  const first = films[found[0]];
  const head = link.head === null ? -1 : headNumbers(first).indexOf(link.head);
  return {
    films: found,
    step: nearest(first.raw.steps, link.step),
    layer: link.layer === null ? null : nearest(first.raw.layers, link.layer),
    head: head < 0 ? null : head,
    pin: link.token === null ? null : { panel: link.panel, position: link.token },
    direction: link.direction,
    colour: link.colour,
    maps: mapsOf(found.map((at) => films[at])).includes(link.maps) ? link.maps : "attention",
    ...(first.anchors.has(link.rule) ? { rule: link.rule } : {}),
  };
}

/** The names of a film's fields: the first film's are bare, the second's have a prefix. */
const PREFIXES = ["", "second-"];

export function writeLink(link: Link): string {
  const found = new URLSearchParams({ explorer: link.explorer });
  const put = (name: string, value: string | number | null) => {
    if (value !== null && value !== "") found.append(name, String(value));
  };
  link.films.forEach((film, i) => {
    const prefix = PREFIXES[i];
    put(`${prefix}model`, film.model);
    if (i === 0 || film.question !== link.films[0].question) put(`${prefix}question`, film.question);
    put(`${prefix}sample`, film.sample);
    for (const spec of film.interventions) put(`${prefix}intervention`, spec);
  });
  if (link.run) {
    put("max-new-tokens", link.run.max_new_tokens);
    put("steps", link.run.steps);
    put("block-length", link.run.block_length);
    put("seed", link.run.seed);
    const titled = link.run.passages.some((passage) => passage.title);
    link.run.passages.forEach((passage, i) => {
      found.append("passage", passage.text);
      if (titled) found.append("title", passage.title);
      if (passage.gold) put("gold", i);
    });
  }
  for (const name of ["step", "layer", "head", "token"] as const) put(name, link[name]);
  if (link.token !== null && link.panel) put("panel", link.panel);
  put("direction", link.direction);
  put("rule", link.rule);
  put("colour", link.colour === COLOURS[0] ? null : link.colour);
  put("maps", link.maps === "attention" ? null : link.maps);
  return found.toString();
}

/** The view that a fragment names, or null if it is a fragment of something else. */
export function readLink(fragment: string): Link | null {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const explorer = given.get("explorer");
  if (!explorer || given.get("model") === null) return null;
  const number = (name: string): number | null => whole(given.get(name));
  const films = PREFIXES.filter((prefix) => given.get(`${prefix}model`) !== null).map((prefix) => ({
    model: given.get(`${prefix}model`)!,
    question: given.get(`${prefix}question`) ?? given.get("question") ?? "",
    sample: given.get(`${prefix}sample`) ?? "",
    interventions: given.getAll(`${prefix}intervention`),
  }));
  const max_new_tokens = number("max-new-tokens");
  const [titles, gold] = [given.getAll("title"), given.getAll("gold").map(whole)];
  const passages = given.getAll("passage").map((text, i) => ({ title: titles[i] ?? "", text, gold: gold.includes(i) }));
  const direction = given.get("direction");
  const colour = given.get("colour") as Colour;
  const maps = given.get("maps") ?? "";
  return {
    explorer,
    films,
    run: max_new_tokens === null ? null : { passages, max_new_tokens, steps: number("steps"), block_length: number("block-length"), seed: number("seed") ?? 0 },
    step: number("step") ?? 0,
    layer: number("layer"),
    head: number("head"),
    token: number("token"),
    panel: number("panel") === 1 ? 1 : 0,
    direction: direction === "from" || direction === "to" ? direction : null,
    rule: given.get("rule") ?? "",
    colour: COLOURS.includes(colour) ? colour : COLOURS[0],
    maps: Object.hasOwn(MAP_NAMES, maps) ? (maps as Maps) : "attention",
  };
}

const whole = (text: string | null): number | null => (text !== null && /^\d{1,9}$/.test(text) ? Number(text) : null);
