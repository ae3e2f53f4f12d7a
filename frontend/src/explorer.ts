/** The explorer: one or two films, and the state that they share. */

import { Controls } from "./controls.ts";
import { attribute, h, setText } from "./dom.ts";
import { exportsOf } from "./exports.ts";
import { complete, decode, headPeak, type Film, type RawFilm } from "./film.ts";
import { linkTo, readLink, stateFor, writeLink, type Link } from "./fragment.ts";
import { inspect } from "./inspect.ts";
import { Legend } from "./legend.ts";
import { linkLayer, linkPosition, linkStep } from "./link.ts";
import { LivePanel, type LiveOptions } from "./live.ts";
import { Menu, type Action } from "./menu.ts";
import { Panel } from "./panel.ts";
import { ownSource } from "./standalone.ts";
import { KEYS, mapsOf, onKey, type Bounds, type Place, type State } from "./state.ts";
import css from "./style.css";
import { paletteFor, type Palette } from "./theme.ts";
import { rowOf, rowPeak, type View } from "./view.ts";

export interface Handle {
  state(): Record<string, unknown>;
  set(partial: Partial<State>): void;
  destroy(): void;
}

export interface Options {
  films: RawFilm[];
  live?: LiveOptions | null;
  state?: Partial<State>;
  onState?: (state: State) => void;
  source?: string; // the script itself, where the page does not hold it
}

export class Explorer implements Handle {
  private films: Film[];
  private names: string[];
  private state_: State;
  private readonly root: HTMLElement;
  private readonly shadow: ShadowRoot;
  private readonly panels: Panel[];
  private readonly question = h("h2");
  private readonly controls: Controls;
  private readonly token = h("b", { class: "token" });
  private readonly facts = h("span", { class: "facts" });
  private readonly from = h("button", { type: "button" }, "attends to");
  private readonly to = h("button", { type: "button" }, "attended by");
  private readonly release = h("button", { type: "button" }, "clear");
  private readonly rowNote = h("span", { class: "note" });
  private readonly legend = new Legend();
  private readonly spoken = h("p", { class: "spoken", "aria-live": "polite" });
  private readonly keys: HTMLDialogElement;
  private readonly panelsBox = h("div", { class: "panels" });
  private readonly main = h("div", { class: "main" });
  private readonly empty = h("p", { class: "empty" });
  private readonly problem = h("p", { class: "error", role: "alert", hidden: true });
  private readonly export: Menu;
  private readonly live: LivePanel | null;
  private readonly observers: { disconnect(): void }[] = [];
  private readonly rows = new Map<string, Float32Array | string>(); // answers of the live channel
  private frame = 0;
  private due = 0;
  private scheme = matchMedia("(prefers-color-scheme: dark)");
  private speaking = 0;

  constructor(
    private readonly element: HTMLElement,
    private readonly given: Options,
  ) {
    this.films = given.films.map(decode);
    this.names = this.films.map((film) => film.raw.model);
    this.state_ = {
      films: twins(this.films),
      step: 0,
      layer: null,
      head: null,
      rule: this.films[0]?.anchors.keys().next().value ?? "sigma(k=3)",
      colour: "attention",
      maps: "attention",
      pin: null,
      hover: null,
      direction: null,
      playing: false,
      speed: 4,
      theme: "auto",
    };
    this.shadow = element.shadowRoot ?? element.attachShadow({ mode: "open" });
    // A constructed style sheet is allowed by a strict Content-Security-Policy; an inline style is not.
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(css);
    this.shadow.adoptedStyleSheets = [sheet];
    this.panels = [0, 1].map((panel) => this.makePanel(panel));
    this.keys = this.makeKeys();
    this.controls = new Controls((change) => this.set(change));
    this.live = given.live ? new LivePanel(given.live, this.liveEvents()) : null;
    this.export = new Menu("Export", this.exports());
    this.root = this.build();
    this.shadow.replaceChildren(this.root);
    this.wire();
    this.set(given.state ?? {});
    this.render();
    for (const panel of this.panels) panel.describe();
    this.restore();
  }

  // --- what is shown ------------------------------------------------------------------------------------------------

  state(): Record<string, unknown> {
    if (this.stale) this.render();
    return {
      ...this.state_,
      theme: this.dark() ? "dark" : "light",
      names: this.names,
      shown: this.visible().map((_, i) => this.panels[i].shown()),
      live: this.live?.state() ?? null,
    };
  }

  set(partial: Partial<State>): void {
    const next = { ...this.state_, ...partial };
    next.films = next.films.filter((i) => i < this.films.length).slice(0, 2);
    if (!next.films.length && this.films.length) next.films = [0];
    const first = this.films[next.films[0]];
    if (first) {
      next.step = Math.max(0, Math.min(first.S - 1, Math.round(next.step)));
      if (next.layer !== null) next.layer = Math.max(0, Math.min(first.L - 1, next.layer));
      if (next.head !== null && (next.head >= first.H || !first.heads)) next.head = null;
      if (partial.films && next.pin && next.pin.panel >= next.films.length) next.pin = null;
      if (next.pin && next.pin.position >= (this.films[next.films[next.pin.panel]]?.T ?? 0)) next.pin = null;
      if (!next.pin) next.direction = null;
      if (partial.playing && !this.state_.playing && next.step >= first.S - 1) next.step = 0;
    }
    this.state_ = next;
    this.invalidate();
    this.given.onState?.(this.state_);
  }

  destroy(): void {
    cancelAnimationFrame(this.frame);
    for (const observer of this.observers) observer.disconnect();
    this.live?.destroy();
    this.shadow.replaceChildren();
  }

  private visible(): Film[] {
    return this.state_.films.map((i) => this.films[i]).filter((film) => film && film.S > 0);
  }

  private dark(): boolean {
    if (this.state_.theme !== "auto") return this.state_.theme === "dark";
    const page = document.documentElement.dataset.theme;
    if (page === "dark" || page === "light") return page === "dark";
    const jupyter = document.body.dataset.jpThemeLight;
    if (jupyter) return jupyter === "false";
    return this.scheme.matches;
  }

  // --- building -----------------------------------------------------------------------------------------------------

  private makePanel(panel: number): Panel {
    const place = (found: Omit<Place, "panel"> | null): Place | null => found && { panel, ...found };
    const toLeft = (step: number) => linkStep(this.visible()[panel], this.visible()[0], step);
    return new Panel({
      hover: (found) => this.hover(place(found)),
      token: (position) => {
        const same = this.state_.pin?.panel === panel && this.state_.pin.position === position;
        this.set({ pin: position === null || same ? null : { panel, position } });
      },
      layer: (layer, position) => {
        const linked = linkLayer(this.visible()[panel], this.visible()[0], layer);
        this.set({ layer: linked, pin: { panel, position } });
      },
      step: (step, position, dragging) =>
        this.set({ step: toLeft(step), playing: false, ...(dragging ? {} : { pin: { panel, position } }) }),
      head: (head) => this.set({ head: this.state_.head === head ? null : head }),
    });
  }

  private hover(place: Place | null): void {
    if (JSON.stringify(place) !== JSON.stringify(this.state_.hover)) {
      this.state_ = { ...this.state_, hover: place };
      this.invalidate();
    }
  }

  private makeKeys(): HTMLDialogElement {
    const rows = KEYS.map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, ...key.split(" ").map((k) => h("kbd", {}, k))), h("td", {}, what)));
    const close = h("button", { type: "button", onclick: () => this.keys.close() }, "Close");
    return h("dialog", { class: "keys", "aria-label": "Keys" }, h("h3", {}, "Keys"), h("table", {}, h("tbody", {}, ...rows)), close);
  }

  private build(): HTMLElement {
    const theme = h("button", { type: "button", class: "quiet", "aria-label": "Dark or light theme", onclick: () => this.set({ theme: this.dark() ? "light" : "dark" }) }, "\u25d0");
    const help = h("button", { type: "button", class: "quiet", "aria-label": "Keys", onclick: () => this.keys.showModal() }, "?");
    this.main.append(
      ...(this.live ? [this.live.notice] : []),
      h("div", { class: "title" }, this.question, h("div", { class: "tools" }, ...this.controls.films, this.export.element, theme, help)),
      this.problem,
      this.controls.bar,
      h("div", { class: "inspect" }, this.token, this.facts, h("span", { class: "ask" }, this.from, this.to, this.release, this.rowNote)),
      this.panelsBox,
      this.empty,
      this.legend.element,
      this.spoken,
      this.keys,
    );
    return h("div", { class: "root", tabindex: 0, role: "region", "aria-label": "FloatLens explorer" }, this.live?.element ?? null, this.main);
  }

  private wire(): void {
    this.from.addEventListener("click", () => this.set({ direction: this.state_.direction === "from" ? null : "from" }));
    this.to.addEventListener("click", () => this.set({ direction: this.state_.direction === "to" ? null : "to" }));
    this.release.addEventListener("click", () => this.set({ pin: null, direction: null }));
    this.root.addEventListener("keydown", (event) => this.onKey(event));
    const clicked = (event: Event) => this.export.clicked(event.composedPath());
    document.addEventListener("pointerdown", clicked);
    const moved = () => this.restore();
    window.addEventListener("hashchange", moved);
    this.observers.push({
      disconnect: () => {
        document.removeEventListener("pointerdown", clicked);
        window.removeEventListener("hashchange", moved);
      },
    });
    const resized = new ResizeObserver(() => {
      for (const panel of this.panels) panel.resized();
      this.invalidate();
    });
    resized.observe(this.root);
    for (const panel of this.panels) resized.observe(panel.element);
    this.observers.push(resized);
    const themed = new MutationObserver(() => this.invalidate());
    themed.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    themed.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
    this.observers.push(themed);
    const schemed = () => this.invalidate();
    this.scheme.addEventListener("change", schemed);
    this.observers.push({ disconnect: () => this.scheme.removeEventListener("change", schemed) });
    void document.fonts?.ready.then(() => this.invalidate());
  }

  private bounds(): Bounds {
    const film = this.visible()[0];
    return {
      steps: film?.S ?? 1,
      layers: film?.L ?? 1,
      heads: film?.heads ? film.H : 0,
      positions: this.visible()[this.state_.pin?.panel ?? 0]?.T ?? 1,
      rules: film ? [...film.anchors.keys()] : [],
      canAttend: this.canAttend(),
      maps: mapsOf(this.visible()),
    };
  }

  private onKey(event: KeyboardEvent): void {
    const target = event.composedPath()[0] as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("dialog, .live, .menu")) return;
    if (target.matches("select, textarea, input:not([type=range])")) return;
    if (target.matches("button") && (event.key === " " || event.key === "Enter")) return;
    if (this.controls.steers(target) && event.key.startsWith("Arrow")) return;
    const change = onKey(this.state_, this.bounds(), event.key, event.shiftKey, this.dark());
    if (!change) return;
    event.preventDefault();
    this.set(change);
  }

  // --- drawing ------------------------------------------------------------------------------------------------------

  private stale = true;
  private invalidate(): void {
    this.stale = true;
    if (!this.frame) this.frame = requestAnimationFrame((now) => this.tick(now));
  }

  private tick(now: number): void {
    this.frame = 0;
    if (this.state_.playing) {
      if (this.due === 0 || now - this.due > 1000) this.due = now + 1000 / this.state_.speed;
      else if (now >= this.due) {
        this.due += 1000 / this.state_.speed;
        const end = (this.visible()[0]?.S ?? 1) - 1;
        this.stale = true;
        if (this.state_.step >= end) this.state_ = { ...this.state_, playing: this.live?.running() ?? false };
        else this.state_ = { ...this.state_, step: this.state_.step + 1 };
      }
    } else this.due = 0;
    if (this.stale) this.render();
    if (this.state_.playing && !this.frame) this.frame = requestAnimationFrame((next) => this.tick(next));
  }

  private render(): void {
    this.stale = false;
    const dark = this.dark();
    const palette = paletteFor(dark);
    const theme = dark ? "dark" : "light";
    if (this.root.dataset.theme !== theme) this.root.dataset.theme = theme;
    const films = this.visible();
    const shape = films.length > 1 ? "two" : "one";
    if (this.root.dataset.shape !== shape) {
      this.root.dataset.shape = shape;
      for (const panel of this.panels) panel.resized();
    }
    const wanted = films.map((_, i) => this.panels[i].element);
    if (wanted.length !== this.panelsBox.children.length || wanted.some((e, i) => this.panelsBox.children[i] !== e)) {
      this.panelsBox.replaceChildren(...wanted);
      for (const panel of this.panels) panel.resized();
    }
    setText(this.empty, films.length ? "" : this.live ? "Ask a question and press Write: each step is drawn while the model writes." : "No film to show.");
    this.empty.hidden = films.length > 0;
    this.live?.notice.classList.toggle("idle", films.length === 0); // then the form is what the reader sees
    this.controls.bar.hidden = this.legend.element.hidden = this.export.element.hidden = films.length === 0;
    setText(this.question, films[0]?.raw.question || "");
    this.controls.draw(films, this.names, this.state_);
    const views = films.map((_, i) => this.view(films, i, palette));
    const highest = Math.max(...views.map((view) => view.rowPeak));
    for (const view of views) view.rowPeak = highest;
    views.forEach((view, i) => this.panels[i].draw(view));
    this.drawInspector(views);
    if (films.length) this.legend.draw(views, palette, this.state_);
    if (films.length) this.speak();
  }

  private view(films: Film[], i: number, palette: Palette): View {
    const state = this.state_;
    const film = films[i];
    const step = Math.min(film.S - 1, linkStep(films[0], film, state.step));
    const layer = linkLayer(films[0], film, state.layer);
    const head = state.head !== null && film.heads && state.head < film.H ? state.head : null;
    const pinned = state.pin && films[state.pin.panel] ? linkPosition(films[state.pin.panel], film, state.pin.position) : null;
    const source = state.hover && films[state.hover.panel];
    const hover =
      state.hover && source
        ? {
            position: linkPosition(source, film, state.hover.position),
            layer: state.hover.layer === undefined ? null : linkLayer(source, film, state.hover.layer),
            step: state.hover.step === undefined ? null : linkStep(source, film, state.hover.step),
          }
        : null;
    const peak = Math.max(...films.map((f) => (state.head !== null && f.heads && state.head < f.H ? this.headPeak(f, state.head) : f.peak)));
    const row = rowOf(film, step, layer, pinned, state.direction) ?? this.liveRow(film, step, layer, pinned);
    return { film, palette, alone: films.length === 1, step, layer, head, rule: state.rule, colour: state.colour, maps: mapsOf([film]).includes(state.maps) ? state.maps : "attention", peak, pin: pinned, hover, direction: state.direction, row, rowPeak: rowPeak(row, film.counts[step]) };
  }

  private readonly peaks = new WeakMap<Film, Map<number, number>>();
  private headPeak(film: Film, head: number): number {
    let found = this.peaks.get(film);
    if (!found) this.peaks.set(film, (found = new Map()));
    if (!found.has(head)) found.set(head, headPeak(film, head));
    return found.get(head)!;
  }

  private drawInspector(views: View[]): void {
    const state = this.state_;
    const place = state.hover ?? state.pin;
    const view = place && views[place.panel];
    const pinned = state.pin !== null && views.length > 0;
    for (const button of [this.from, this.to, this.release]) button.hidden = !pinned;
    if (view && place.position < view.film.T) {
      const found = inspect(state.hover ? view : { ...view, hover: null }, place.position);
      setText(this.token, found.token);
      setText(this.facts, found.facts.join(" \u00b7 "));
    } else {
      setText(this.token, "");
      setText(this.facts, views.length ? "Hover over a token or a cell for details; click to select it. Space plays, the arrow keys step." : "");
    }
    attribute(this.from, "aria-pressed", String(state.direction === "from"));
    attribute(this.to, "aria-pressed", String(state.direction === "to"));
    const can = this.canAttend();
    this.from.disabled = this.to.disabled = !can;
    let note = pinned && !can ? "attention matrices were not recorded; trace with matrices=[\"attention_mean\"]" : "";
    const target = state.pin && views[state.pin.panel];
    if (target && state.direction && can && !target.row) note = this.liveNote(target) ?? "\u2026";
    if (target?.row && target.film.raw.diffusion && target.film.attentionSteps.length && !target.film.attentionSteps.includes(target.step)) {
      const nearby = target.film.attentionSteps.reduce((a, b) => (Math.abs(b - target.step) < Math.abs(a - target.step) ? b : a));
      note = `matrix of step ${target.film.raw.steps[nearby]}, the nearest one kept`;
    }
    setText(this.rowNote, note);
  }

  /** Tell screen readers what changed, once the film stands still. */
  private speak(): void {
    clearTimeout(this.speaking);
    if (this.state_.playing) return;
    this.speaking = window.setTimeout(() => {
      const said = this.visible().map((film, i) => {
        const shown = this.panels[i].shown();
        return `${film.raw.model}, step ${shown.step}: ${shown.written || "nothing written yet"}; ${(shown.anchors as number[]).length} anchors.`;
      });
      setText(this.spoken, said.join(" "));
      for (const panel of this.panels) panel.describe();
    }, 400);
  }

  // --- out of the page ----------------------------------------------------------------------------------------------

  private exports(): Action[][] {
    return exportsOf({
      films: () => this.shown(),
      views: () => this.shown().map((_, i) => this.panels[i].view!),
      state: () => this.state_,
      palette: () => paletteFor(this.dark()),
      source: async () => this.given.source ?? ownSource(),
      address: this.linkable() ? () => this.address() : null,
      trace: this.live && this.given.live?.trace ? (film) => this.live!.trace(film) : null,
      root: this.main,
    });
  }

  /** The films on the screen, drawn as they are now; those that are still being written cannot be taken out. */
  private shown(): Film[] {
    const films = this.visible();
    if (!films.every(complete)) throw new Error("The film is still being written; wait until it is done.");
    if (this.stale) this.render();
    return films;
  }

  /** Does the page have an address that opens it again? A notebook's frame and a widget do not. */
  private linkable(): boolean {
    return this.element.id !== "" && this.element.isConnected && /^(https?|file):$/.test(location.protocol);
  }

  private address(): string {
    const films = this.shown();
    const address = new URL(location.href);
    address.hash = writeLink(linkTo(this.element.id, films, this.state_, this.live?.wrote(films[0]) ?? false));
    return address.href;
  }

  private link: Link | null = null; // of which the films are on their way

  /** Open the view that the address names, if it names one of this explorer. */
  private restore(): void {
    const link = this.linkable() ? readLink(location.hash) : null;
    if (link?.explorer !== this.element.id) return;
    this.complain("");
    let coming = false;
    try {
      coming = this.live?.open(link) ?? false;
    } catch (error) {
      return this.complain((error as Error).message);
    }
    if (coming) this.link = link;
    else this.show(link);
    if (!this.live) this.root.scrollIntoView({ block: "start" });
  }

  /** Show what a link asks for, once all of its films are there. */
  private follow(): void {
    if (!this.link || this.live?.running()) return;
    const { link } = this;
    this.link = null;
    this.show(link);
  }

  private show(link: Link): void {
    const found = stateFor(link, this.films);
    if (typeof found === "string") this.complain(found);
    else this.set({ ...found, playing: false });
  }

  private complain(message: string): void {
    setText(this.problem, message);
    this.problem.hidden = message === "";
  }

  // --- live ---------------------------------------------------------------------------------------------------------

  private liveEvents() {
    return {
      started: () => {
        this.unseen = true;
        this.link = null;
        this.complain("");
      },
      films: (films: Film[], names: string[]) => {
        this.films = films;
        this.names = names;
        const shown = films.map((_, i) => i).slice(0, 2);
        this.rows.clear();
        this.set({ films: shown, step: 0, pin: null, hover: null, direction: null, playing: false });
        this.follow();
      },
      grown: (film: Film, old: Film) => {
        const at = this.films.indexOf(old);
        if (at < 0) return;
        this.films = this.films.map((f, i) => (i === at ? film : f));
        const first = this.films[this.state_.films[0]];
        // Follow what is being written, unless the reader went back to look. The cursor counts the steps of the first:
        // beside one that has as many, both are played together, beside another the first stays at its end.
        const follow = this.state_.films.includes(at) && (this.state_.step >= old.S - 2 || old.S === 0);
        const together = film === first || film.raw.steps.length === first.raw.steps.length;
        this.set(follow ? { step: Math.max(0, (together ? Math.min(film.S, first.S) : first.S) - 1) } : {});
        if (this.unseen) this.bringIntoView();
        this.follow();
      },
      row: (film: Film, key: string, values: Float32Array | string) => {
        this.rows.set(`${this.films.indexOf(film)}/${key}`, values);
        this.invalidate();
      },
    };
  }

  private unseen = false; // a run was started, and nothing of it has been drawn

  /** Scroll to the film where it is below the form that asked for it, once there is something to see. */
  private bringIntoView(): void {
    this.unseen = false;
    this.render();
    const form = this.live!.element.getBoundingClientRect();
    if (this.main.getBoundingClientRect().top < form.bottom) return;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.main.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
  }

  private canAttend(): boolean {
    const film = this.visible()[this.state_.pin?.panel ?? 0];
    return film !== undefined && (film.attention !== null || (this.live?.canAsk(film) ?? false));
  }

  private liveKey(film: Film, step: number, layer: number | null, pin: number): string {
    return [film.raw.steps[step], layer === null ? null : film.raw.layers[layer], pin, this.state_.direction].join("/");
  }

  private liveRow(film: Film, step: number, layer: number | null, pin: number | null): Float32Array | null {
    const { direction } = this.state_;
    if (!this.live || pin === null || direction === null || !this.live.canAsk(film)) return null;
    const key = this.liveKey(film, step, layer, pin);
    const found = this.rows.get(`${this.films.indexOf(film)}/${key}`);
    if (found === undefined) this.live.ask(film, key, film.raw.steps[step], layer === null ? null : film.raw.layers[layer], pin, direction);
    return found instanceof Float32Array ? found : null;
  }

  private liveNote(view: View): string | null {
    if (view.pin === null) return null;
    const found = this.rows.get(`${this.films.indexOf(view.film)}/${this.liveKey(view.film, view.step, view.layer, view.pin)}`);
    return typeof found === "string" ? found : null;
  }
}

/** The films to start with: the first, and beside it the first of another model on the same question. */
export function twins(films: Film[]): number[] {
  if (!films.length) return [];
  const beside = films.findIndex((f, i) => i > 0 && f.raw.question === films[0].raw.question && f.raw.question !== "");
  return beside > 0 ? [0, beside] : [0];
}
