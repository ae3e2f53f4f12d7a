/** One film: its text, and beside it the maps and heads. */

import { aboutFilm, answerOf, captionsOf } from "./about.ts";
import { attribute, h, setText } from "./dom.ts";
import { anchorPositions, piece, profile, tokenAfter, type Film } from "./film.ts";
import { HeadsView } from "./heads.ts";
import { LayerMap, StepMap } from "./maps.ts";
import { TextView } from "./text.ts";
import type { Place } from "./state.ts";
import type { View } from "./view.ts";

export interface PanelEvents {
  hover(place: Omit<Place, "panel"> | null): void;
  token(position: number | null): void;
  layer(layer: number, position: number): void;
  step(step: number, position: number, dragging: boolean): void;
  head(head: number): void;
}

export class Panel {
  readonly element: HTMLElement;
  readonly text: TextView;
  readonly layers: LayerMap;
  readonly steps: StepMap;
  readonly heads: HeadsView;
  private readonly model = h("h3");
  private readonly about = h("span", { class: "about" });
  private readonly answer = h("p", { class: "answer" });
  private readonly captions = [h("figcaption"), h("figcaption"), h("figcaption")];
  private readonly thinned = h("p", { class: "thinned", role: "note" });
  private readonly left = h("div", { class: "left" });
  private readonly right = h("div", { class: "right" });
  private readonly headFigure: HTMLElement;
  view: View | null = null;

  constructor(on: PanelEvents) {
    this.text = new TextView({ hover: (p) => on.hover(p === null ? null : { position: p }), click: on.token });
    this.layers = new LayerMap("layers", {
      hover: (c) => on.hover(c && { position: c.position, layer: c.row }),
      click: (c) => on.layer(c.row, c.position),
    });
    this.steps = new StepMap("steps", {
      hover: (c) => on.hover(c && { position: c.position, step: c.row }),
      click: (c, dragging) => on.step(c.row, c.position, dragging),
    });
    this.heads = new HeadsView({ hover: (p) => on.hover(p === null ? null : { position: p }), click: on.head });
    this.headFigure = h("figure", {}, this.captions[2], this.heads.element);
    this.left.append(this.text.element);
    this.right.append(
      h("figure", {}, this.captions[0], this.layers.element),
      h("figure", {}, this.captions[1], this.steps.element),
      this.headFigure,
    );
    this.element = h(
      "section",
      { class: "panel" },
      h("header", {}, h("div", {}, this.model, this.about), this.answer),
      h("div", { class: "body" }, this.left, this.right),
      this.thinned,
    );
  }

  draw(view: View): void {
    this.view = view;
    const { film } = view;
    const { raw } = film;
    attribute(this.element, "aria-label", raw.model);
    setText(this.model, raw.model);
    setText(this.about, aboutFilm(film));
    this.drawAnswer(film);
    captionsOf(view).forEach(([name, where], i) => caption(this.captions[i], name, where));
    setText(this.thinned, raw.thinned ? `Thinned to fit the page: ${raw.thinned.join(" ")}` : "");
    this.thinned.hidden = !raw.thinned;
    this.headFigure.hidden = film.heads === null;
    // Reading an element's width makes the browser lay out the page, so it is read only when it may have changed.
    this.widths ??= [this.text.element.clientWidth, this.right.clientWidth];
    this.text.draw(view, Math.max(200, this.widths[0]));
    const width = Math.max(200, this.widths[1]);
    this.layers.draw(view, width);
    this.steps.draw(view, width);
    this.heads.draw(view, width);
  }

  private widths: [number, number] | null = null;
  resized(): void {
    this.widths = null;
  }

  /** Label the pictures for screen readers. */
  describe(): void {
    if (!this.view) return;
    const { raw } = this.view.film;
    const step = raw.steps[this.view.step];
    const layer = this.view.layer === null ? "mean of all layers" : `layer ${raw.layers[this.view.layer]}`;
    this.text.base.setAttribute("aria-label", `Text of ${raw.model} at step ${step}, shaded by attention; ${layer}`);
    this.layers.base.setAttribute("aria-label", `Received attention of ${raw.model}, layers by positions, step ${step}`);
    this.steps.base.setAttribute("aria-label", `Received attention of ${raw.model}, steps by positions, ${layer}`);
    this.heads.base.setAttribute("aria-label", `Received attention of ${raw.model} by head, ${layer}`);
  }

  private answeredFor = "";
  private drawAnswer(film: Film): void {
    const { output, correct, expected, interventions } = answerOf(film);
    const key = JSON.stringify([output, correct, expected, interventions]);
    if (key === this.answeredFor) return;
    this.answeredFor = key;
    this.answer.replaceChildren();
    const verdict = correct ? h("span", { class: "right-answer" }, " \u2713 correct") : null;
    if (output) this.answer.append(h("span", { class: "said", title: output }, "wrote ", h("q", {}, output), verdict), " ");
    if (expected) this.answer.append(h("span", { class: "said", title: expected }, "expected ", h("q", {}, expected)), " ");
    if (interventions) this.answer.append(h("span", { class: "changed" }, interventions));
  }

  /** The answer as it stands after the step, as plain text. */
  textNow(): string {
    const { film, step } = this.view!;
    let found = "";
    for (let t = film.raw.prompt_length; t < film.T; t++) {
      const id = tokenAfter(film, step, t);
      if (id < 0 || (film.special.has(id) && !film.masks.has(id))) continue;
      found += film.masks.has(id) ? " \u25af" : piece(film, id);
    }
    return found.trim();
  }

  /** What is shown, as data for tests and screen readers. */
  shown(): Record<string, unknown> {
    const view = this.view;
    if (!view) return {};
    const { film } = view;
    const mark = view.hover?.position ?? view.pin;
    const values = profile(film, view.step, view.layer, view.head);
    return {
      model: film.raw.model,
      step: film.raw.steps[view.step],
      layer: view.layer === null ? null : film.raw.layers[view.layer],
      anchors: anchorPositions(film, view.rule, view.step, view.layer),
      position: mark,
      received: mark === null || mark === undefined || !values ? null : values[mark],
      attention: view.row ? Array.from(view.row, (v) => (Number.isFinite(v) ? v : null)) : null,
      written: this.textNow(),
      peak: view.peak,
    };
  }
}

function caption(element: HTMLElement, name: string, where: string): void {
  if (element.dataset.key === name + where) return;
  element.dataset.key = name + where;
  element.replaceChildren(h("b", {}, name), " ", h("span", {}, where));
}
