/** The controls: films, step, layer, head, anchor rule and colours. */

import { attribute, h, options, setText } from "./dom.ts";
import type { Film } from "./film.ts";
import { COLOURS, MAP_NAMES, mapsOf, SPEEDS, type Colour, type Maps, type State } from "./state.ts";

export class Controls {
  readonly bar = h("div", { class: "bar" });
  readonly films: HTMLElement[];
  private readonly play = h("button", { class: "play", type: "button" });
  private readonly scrub = h("input", { type: "range", min: 0, step: 1, class: "scrub", "aria-label": "Step" });
  private readonly stepText = h("output", { class: "step" });
  private readonly speed = h("select", { "aria-label": "Steps per second" });
  private readonly layer = h("input", { type: "range", min: -1, step: 1, "aria-label": "Layer" });
  private readonly layerText = h("output");
  private readonly head = h("select", { "aria-label": "Head" });
  private readonly rule = h("select", { "aria-label": "Anchor rule" });
  private readonly maps = h("select", { "aria-label": "Maps show" });
  private readonly mapsLabel = h("label", {}, "Maps", this.maps);
  private readonly colours = h("div", { class: "segments", role: "radiogroup", "aria-label": "Colour by" });
  private readonly left = h("select", { "aria-label": "Film" });
  private readonly right = h("select", { "aria-label": "Second film" });
  private readonly leftLabel: HTMLElement;
  private readonly rightLabel: HTMLElement;
  private playing = false;

  constructor(set: (change: Partial<State>) => void) {
    this.leftLabel = h("label", {}, "Film", this.left);
    this.rightLabel = h("label", {}, "vs.", this.right);
    this.films = [this.leftLabel, this.rightLabel];
    for (const colour of COLOURS)
      this.colours.append(h("button", { type: "button", role: "radio", "data-colour": colour, onclick: () => set({ colour: colour as Colour }) }, colour));
    this.bar.append(
      h("div", { class: "transport" }, this.play, this.scrub, this.stepText, this.speed),
      h("label", { class: "layer" }, "Layer", this.layer, this.layerText),
      h("label", {}, "Head", this.head),
      h("label", {}, "Anchors", this.rule),
      this.mapsLabel,
      this.colours,
    );
    this.play.addEventListener("click", () => set({ playing: !this.playing }));
    this.scrub.addEventListener("input", () => set({ step: Number(this.scrub.value), playing: false }));
    this.layer.addEventListener("input", () => set({ layer: Number(this.layer.value) < 0 ? null : Number(this.layer.value) }));
    this.speed.addEventListener("change", () => set({ speed: Number(this.speed.value) }));
    this.head.addEventListener("change", () => set({ head: this.head.value === "" ? null : Number(this.head.value) }));
    this.maps.addEventListener("change", () => set({ maps: this.maps.value as Maps }));
    this.rule.addEventListener("change", () => set({ rule: this.rule.value }));
    const choose = () => set({ films: [Number(this.left.value), ...(this.right.value === "" ? [] : [Number(this.right.value)])] });
    this.left.addEventListener("change", choose);
    this.right.addEventListener("change", choose);
  }

  /** Does an element use the arrow keys itself? */
  steers(element: HTMLElement): boolean {
    return element === this.layer;
  }

  draw(films: Film[], names: string[], state: State): void {
    const film = films[0];
    this.playing = state.playing;
    this.play.disabled = this.scrub.disabled = this.layer.disabled = !film;
    setText(this.play, state.playing ? "\u2759\u2759" : "\u25b6");
    attribute(this.play, "aria-label", state.playing ? "Pause" : "Play");
    const several = names.length > 1;
    this.leftLabel.hidden = !several;
    this.rightLabel.hidden = !several;
    const entries = names.map((name, i): [string, string] => [String(i), unique(names, name, i)]);
    options(this.left, entries, String(state.films[0] ?? ""));
    options(this.right, [["", "none"], ...entries], String(state.films[1] ?? ""));
    options(this.speed, SPEEDS.map((s): [string, string] => [String(s), `${s} / s`]), String(state.speed));
    for (const button of this.colours.children) attribute(button, "aria-checked", String((button as HTMLElement).dataset.colour === state.colour));
    const shown = mapsOf(films);
    this.mapsLabel.hidden = shown.length < 2;
    options(this.maps, shown.map((maps): [string, string] => [maps, MAP_NAMES[maps]]), state.maps);
    if (!film) return;
    attribute(this.scrub, "max", String(film.S - 1));
    this.scrub.value = String(state.step);
    const total = film.raw.steps[film.S - 1];
    const stepText = `step ${film.raw.steps[state.step]} of ${total}`;
    this.scrub.setAttribute("aria-valuetext", stepText);
    setText(this.stepText, stepText);
    this.scrub.style.setProperty("--done", `${film.S > 1 ? (state.step / (film.S - 1)) * 100 : 100}%`);
    attribute(this.layer, "max", String(film.L - 1));
    this.layer.value = String(state.layer ?? -1);
    const layerText = state.layer === null ? "all" : String(film.raw.layers[state.layer]);
    attribute(this.layer, "aria-valuetext", state.layer === null ? "mean of all layers" : `layer ${layerText}`);
    setText(this.layerText, layerText);
    const heads = film.heads ? Array.from({ length: film.H }, (_, i): [string, string] => [String(i), String(film.raw.head_numbers?.[i] ?? i)]) : [];
    options(this.head, [["", "mean"], ...heads], state.head === null ? "" : String(state.head));
    this.head.disabled = !film.heads;
    options(this.rule, [...film.anchors.keys()].map((id): [string, string] => [id, id]), state.rule);
  }
}

function unique(names: string[], name: string, at: number): string {
  return names.filter((n) => n === name).length > 1 ? `${at + 1}. ${name}` : name;
}
