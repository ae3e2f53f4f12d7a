/** The asset's entry: `mount` for pages, `render` for notebooks, and every place of the page that asks for an explorer. */

export interface Handle {
  state(): Record<string, unknown>;
  set(partial: Record<string, unknown>): void;
  destroy(): void;
}

export function mount(element: HTMLElement, data: { films: { question: string }[]; live?: unknown }): Handle {
  let state: Record<string, unknown> = { films: data.films.length, step: 0 };
  const title = document.createElement("h2");
  title.textContent = data.films[0]?.question ?? "";
  element.replaceChildren(title);
  return {
    state: () => ({ ...state }),
    set: (partial) => void (state = { ...state, ...partial }),
    destroy: () => element.replaceChildren(),
  };
}

for (const element of document.querySelectorAll<HTMLElement>("[data-floatlens-explorer]")) {
  const data = document.getElementById(element.dataset.floatlensExplorer ?? "");
  if (!data || element.dataset.mounted) continue;
  element.dataset.mounted = "true";
  Object.assign(window, { floatlens: mount(element, JSON.parse(data.textContent ?? "{}")) });
}
