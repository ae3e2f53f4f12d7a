/** What takes a view out of the page: files to save, links and code to copy. */

import { asCommand, asPython, type Code } from "./code.ts";
import { h } from "./dom.ts";
import type { Film } from "./film.ts";
import type { Action } from "./menu.ts";
import { asPng, asSvg } from "./picture.ts";
import { kept, standalone } from "./standalone.ts";
import type { State } from "./state.ts";
import type { Palette } from "./theme.ts";
import type { View } from "./view.ts";

/** What is on the screen when an action is chosen. */
export interface Screen {
  films(): Film[];
  views(): View[];
  state(): State;
  palette(): Palette;
  source(): Promise<string>; // of the explorer's own script
  address: (() => string) | null; // null: nothing leads back to this page
  trace: ((film: Film) => Promise<Blob>) | null; // null: no server has it
  root: ParentNode;
}

export function exportsOf(screen: Screen): Action[][] {
  const file = (ending: string) => fileName(screen.films()[0].raw.model, screen.films()[0].raw.question, ending);
  const page = async () => {
    const films = screen.films();
    const state = { ...kept(screen.state()), films: films.map((_, i) => i) };
    return new Blob([await standalone(films.map((film) => film.raw), state, await screen.source())], { type: "text/html" });
  };
  const code = async (make: (films: Film[], state: State) => Code) => {
    const made = make(screen.films(), screen.state());
    if ("reason" in made) throw new Error(made.reason);
    return copy(made.text, screen.root);
  };
  const traces = async () => {
    const said: string[] = [];
    for (const film of screen.films()) said.push(save(fileName(film.raw.model, film.raw.question, "zarr.zip"), await screen.trace!(film)));
    return said.join("; ");
  };
  const { address } = screen;
  const link = async () => (await copy(address!(), screen.root));
  return [
    [
      { name: "Save as HTML", run: async () => save(file("html"), await page()) },
      { name: "Save as PNG", run: async () => save(file("png"), await asPng(screen.views(), screen.state(), screen.palette())) },
      { name: "Save as SVG", run: async () => save(file("svg"), asSvg(screen.views(), screen.state(), screen.palette())) },
      ...(screen.trace ? [{ name: "Save trace (Zarr)", run: traces }] : []),
    ],
    [
      ...(address ? [{ name: "Copy link", run: link }] : []),
      { name: "Copy as Python", run: () => code(asPython) },
      { name: "Copy as command", run: () => code(asCommand) },
    ],
  ];
}

function save(name: string, content: Blob): string {
  const address = URL.createObjectURL(content);
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  return `Saved ${name}`;
}

/** Copy to the clipboard; where the browser does not allow that, show the text, so that the reader can. */
async function copy(text: string, root: ParentNode): Promise<string> {
  try {
    // A frame is seldom allowed to use the clipboard directly.
    if (window.parent === window) {
      await navigator.clipboard.writeText(text);
      return "Copied";
    }
  } catch {
    // an insecure origin, or refused; the old way needs no permission
  }
  const area = h("textarea", { class: "spoken", "aria-hidden": "true" });
  area.value = text;
  root.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (copied) return "Copied";
  const shown = h("textarea", { readonly: true, rows: 12, "aria-label": "Text to copy" });
  shown.value = text;
  const dialog = h("dialog", { class: "by-hand", "aria-label": "Copy" }, shown, h("button", { type: "button", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("close", () => dialog.remove());
  root.append(dialog);
  dialog.showModal();
  shown.select();
  return "Press Ctrl+C to copy";
}

/** A name for a file: letters and digits of what it shows. */
export function fileName(model: string, question: string, ending: string): string {
  const words = `${model} ${question}`.normalize("NFKD").toLowerCase().match(/[a-z0-9]+/g) ?? [];
  return `${["floatlens", ...words].join("-").slice(0, 60).replace(/-+$/, "")}.${ending}`;
}
