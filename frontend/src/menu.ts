/** A button with a menu of actions under it. Each says in a few words what it did. */

import { h, setText } from "./dom.ts";

export interface Action {
  name: string;
  /** Does it, and says so in a few words. An error's message is shown as it is. */
  run(): Promise<string>;
}

const MARGIN = 8; // pixels between the menu and the edge of the window

export class Menu {
  readonly element: HTMLElement;
  private readonly button: HTMLButtonElement;
  private readonly message = h("p", { role: "status" });
  private readonly menu: HTMLElement;

  constructor(name: string, groups: Action[][]) {
    this.button = h("button", { type: "button", "aria-expanded": "false" }, name);
    const item = (action: Action) => h("button", { type: "button", onclick: () => void this.perform(action) }, action.name);
    const lists = groups.filter((group) => group.length).map((group) => h("div", { class: "items" }, ...group.map(item)));
    this.menu = h("div", { class: "menu", hidden: true }, ...lists, this.message);
    this.element = h("div", { class: "export" }, this.button, this.menu);
    this.button.addEventListener("click", () => this.open(Boolean(this.menu.hidden)));
    this.element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.menu.hidden) return;
      event.stopPropagation();
      this.open(false);
      this.button.focus();
    });
  }

  open(open: boolean): void {
    this.menu.hidden = !open;
    this.button.setAttribute("aria-expanded", String(open));
    this.menu.style.right = "0";
    const { left } = this.menu.getBoundingClientRect();
    if (open && left < MARGIN) this.menu.style.right = `${left - MARGIN}px`; // the button may be at either end of its line
    this.say("");
  }

  /** Close when something else is clicked. */
  clicked(path: EventTarget[]): void {
    if (!this.menu.hidden && !path.includes(this.element)) this.open(false);
  }

  private say(text: string, failed = false): void {
    setText(this.message, text);
    this.message.hidden = text === "";
    this.message.classList.toggle("error", failed);
  }

  private async perform(action: Action): Promise<void> {
    this.say("\u2026");
    try {
      this.say(await action.run());
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error), true);
    }
  }
}
