/** The answers so far: with and without interventions, as a table. */

import { h } from "./dom.ts";

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
  const row = (entry: Entry) =>
    h(
      "tr",
      {},
      h("td", {}, entry.model),
      h("td", {}, entry.gold),
      h("td", { title: entry.original }, entry.original || "\u2013"),
      h("td", { title: [entry.changed, ...entry.specs].join("\n"), class: entry.changed === null ? "" : entry.changed === entry.original ? "same" : "differs" }, entry.changed === null ? "" : entry.changed || "\u2013"),
    );
  const head = h("tr", {}, ...["model", "gold at", "answer", "changed"].map((name) => h("th", { scope: "col" }, name)));
  table.replaceChildren(h("thead", {}, head), h("tbody", {}, ...history.slice(-8).reverse().map(row)));
}
