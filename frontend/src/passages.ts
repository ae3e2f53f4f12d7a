/** The passages of a question: edit them, mark them as gold, reorder them. */

import { h } from "./dom.ts";
import type { Passage } from "./protocol.ts";

export class Passages {
  readonly element = h("ol", { class: "passages", "aria-label": "Passages" });
  private shown: Passage[] = [];
  private dragged = -1;

  /** `change` gets the passages as they are now. */
  constructor(
    private readonly change: (passages: Passage[]) => void,
    private readonly longest?: number,
  ) {}

  draw(passages: Passage[]): void {
    this.shown = passages;
    const key = passages.map((p) => p.gold).join() + passages.length;
    const typed = this.element.children.length === passages.length && this.element.dataset.key === key;
    if (typed && passages.every((p, i) => (this.element.children[i].querySelector("textarea") as HTMLTextAreaElement).value === p.text)) return;
    this.element.dataset.key = key;
    this.element.replaceChildren(...passages.map((passage, at) => this.passage(passage, at)));
  }

  private passage(passage: Passage, at: number): HTMLElement {
    const edit = (partial: Partial<Passage>) => this.change(this.shown.map((p, i) => (i === at ? { ...p, ...partial } : p)));
    const text = h("textarea", { rows: 2, "aria-label": `Passage ${at + 1}`, maxlength: this.longest });
    text.value = passage.text;
    text.addEventListener("input", () => edit({ text: text.value }));
    const grip = h("button", { type: "button", class: "grip", "aria-label": `Passage ${at + 1}: move with Alt and the arrow keys` }, "\u2807");
    const gold = h("button", { type: "button", class: "gold", "aria-pressed": String(passage.gold), onclick: () => edit({ gold: !passage.gold }) }, "gold");
    const remove = h(
      "button",
      { type: "button", class: "quiet", "aria-label": `Remove passage ${at + 1}`, onclick: () => this.change(this.shown.filter((_, i) => i !== at)) },
      "\u00d7",
    );
    const item = h("li", { class: passage.gold ? "is-gold" : "", "data-passage": at }, grip, text, h("span", { class: "tools" }, gold, remove));
    item.addEventListener("keydown", (event) => {
      if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
      event.preventDefault();
      this.move(at, at + (event.key === "ArrowUp" ? -1 : 1));
    });
    // Pointer events, because the browser's own drag and drop does not work on touch screens. Only the grip starts a drag,
    // so that text in the passage can still be selected.
    const over = (event: PointerEvent): number =>
      [...this.element.children].findIndex((other) => {
        const box = other.getBoundingClientRect();
        return event.clientY >= box.top && event.clientY < box.bottom;
      });
    const mark = (target: number) => {
      for (const [i, other] of [...this.element.children].entries()) other.classList.toggle("target", i === target && i !== at);
    };
    grip.addEventListener("pointerdown", (event) => {
      this.dragged = at;
      grip.setPointerCapture(event.pointerId);
      item.classList.add("dragged");
    });
    grip.addEventListener("pointermove", (event) => {
      if (this.dragged === at) mark(over(event));
    });
    const end = (target: number) => {
      if (this.dragged !== at) return;
      this.dragged = -1;
      item.classList.remove("dragged");
      mark(-1);
      if (target >= 0) this.move(at, target);
    };
    grip.addEventListener("pointerup", (event) => end(over(event)));
    grip.addEventListener("pointercancel", () => end(-1));
    return item;
  }

  private move(from: number, to: number): void {
    if (to < 0 || to >= this.shown.length || from === to) return;
    const passages = [...this.shown];
    const [moved] = passages.splice(from, 1);
    passages.splice(to, 0, moved);
    this.change(passages);
    (this.element.children[to]?.querySelector(".grip") as HTMLElement | null)?.focus();
  }
}
