/** Small helpers for the page's elements. Text is only ever set as text. */

type Props = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

/** An element with attributes (`on…` are listeners) and children; strings become text nodes. */
export function h<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: (Node | string | null)[]): HTMLElementTagNameMap[K] {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") made.addEventListener(key.slice(2), value as (event: Event) => void);
    else made.setAttribute(key, value === true ? "" : String(value));
  }
  made.append(...children.filter((child): child is Node | string => child !== null));
  return made;
}

export function attribute(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Give a canvas a size in CSS pixels, sharp on the screen that it is on, and return its context, scaled. A canvas whose
 * size changes loses its picture: what is drawn only on changes must count `sizeOf` among them.
 */
export function resize(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const w = Math.max(1, Math.round(width * ratio));
  const hgt = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== hgt) {
    canvas.width = w;
    canvas.height = hgt;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d")!;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

export const sizeOf = (canvas: HTMLCanvasElement): string => `${canvas.width}\u00d7${canvas.height}`;

export function options(select: HTMLSelectElement, entries: [string, string][], chosen: string): void {
  const key = entries.map((e) => e.join("\u0000")).join("\u0001");
  if (select.dataset.key !== key) {
    select.dataset.key = key;
    select.replaceChildren(...entries.map(([value, label]) => h("option", { value }, label)));
  }
  if (select.value !== chosen) select.value = chosen;
}
