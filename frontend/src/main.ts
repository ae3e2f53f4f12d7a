/** The entry: `mount` for pages, `render` for notebooks, and every element of the page that asks for an explorer. */

import { Explorer, type Handle, type Options } from "./explorer.ts";
import type { RawFilm } from "./film.ts";
import { kept } from "./standalone.ts";
import type { State } from "./state.ts";

export function mount(element: HTMLElement, given: Options): Handle {
  return new Explorer(element, given);
}

interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  on(event: string, callback: () => void): void;
  off(event: string, callback: () => void): void;
}

/** anywidget's entry. `state` is shared with Python in both directions. */
export function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const box = document.createElement("div");
  el.append(box);
  let sent = "";
  const handle = new Explorer(box, {
    films: model.get("films") as RawFilm[],
    state: model.get("state") as Partial<State>,
    source: model.get("_esm") as string | undefined, // what anywidget loaded; it is nowhere in the page
    onState: (state) => {
      if (state.playing || JSON.stringify(kept(state)) === sent) return;
      sent = JSON.stringify(kept(state));
      model.set("state", kept(state));
      model.save_changes();
    },
  });
  const changed = () => {
    const state = model.get("state") as Partial<State>;
    if (JSON.stringify(state) !== sent) handle.set(state);
  };
  model.on("change:state", changed);
  return () => {
    model.off("change:state", changed);
    handle.destroy();
  };
}

for (const element of document.querySelectorAll<HTMLElement>("[data-floatlens-explorer]")) {
  const data = document.getElementById(element.dataset.floatlensExplorer ?? "");
  if (!data || element.dataset.mounted) continue;
  element.dataset.mounted = "true";
  Object.assign(window, { floatlens: mount(element, JSON.parse(data.textContent ?? "{}") as Options) });
}

export default { render };
