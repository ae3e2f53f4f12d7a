/** The answers so far: with and without interventions, as a table. */

import { h } from "./dom.ts";

/** What stands in the place of an answer. */
export const WAITING = "\u2026";
export const STOPPED = "stopped";
export const FAILED = "failed";
const NO_ANSWER = [WAITING, STOPPED, FAILED];

export interface Entry {
  gold: string;
  model: string;
  original: string;
  changed: string | null;
  specs: string[];
}

/** Draw the last of them, the newest first. */
export function drawPast(table: HTMLTableElement, history: Entry[]): void {
  table.hidden = !history.length;
  const look = (answer: string, other: string) => (NO_ANSWER.includes(answer) ? "none" : answer === other || NO_ANSWER.includes(other) ? "" : "differs");
  const row = ({ model, gold, original, changed, specs }: Entry) =>
    h(
      "tr",
      {},
      h("td", { title: model }, model),
      h("td", {}, gold),
      h("td", { title: original, class: look(original, original) }, original || "\u2013"),
      h("td", { title: [changed, ...specs].join("\n"), class: changed === null ? "" : look(changed, original) }, changed === null ? "" : changed || "\u2013"),
    );
  const head = h("tr", {}, ...["model", "gold", "answer", "intervened"].map((name) => h("th", { scope: "col" }, name)));
  table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...history.slice(-8).reverse().map(row)));
}
