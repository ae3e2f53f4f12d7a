/** One film: its text, and beside it the maps and heads. */

import { attribute, h, setText } from "./dom.ts";
import { anchorPositions, nearest, piece, profile, tokenAfter, type Film } from "./film.ts";
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
    const kind = raw.diffusion ? "masked diffusion" : "autoregressive";
    setText(this.about, `${kind} \u00b7 ${film.T} positions \u00b7 ${film.S} steps \u00b7 ${film.L} layers \u00d7 ${film.H} heads`);
    this.drawAnswer(film);
    const step = raw.steps[view.step];
    const layer = view.layer === null ? "mean of all layers" : `layer ${raw.layers[view.layer]}`;
    const head = view.head === null ? "" : `, head ${raw.head_numbers?.[view.head] ?? view.head}`;
    const at = nearest(film.headSteps, view.step);
    const kept = at >= 0 ? raw.steps[film.headSteps[at]] : step;
    caption(this.captions[0], "Layers \u00d7 positions", `step ${view.head === null ? step : kept}${head}`);
    caption(this.captions[1], "Steps \u00d7 positions", `${layer}${head}`);
    caption(this.captions[2], "Heads", `step ${kept}${kept === step ? "" : " (the nearest that was kept)"}, ${layer}`);
    setText(this.thinned, raw.thinned ? `Thinned to fit the page: ${raw.thinned.join(" ")}` : "");
    this.thinned.hidden = !raw.thinned;
    this.headFigure.hidden = film.heads === null;
    // Asking an element for its width makes the browser lay out the page, so it is asked only when that may have changed.
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

  /** Name the pictures for those who do not see them. */
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
    const { output, answers, interventions } = film.raw;
    const key = JSON.stringify([output, answers, interventions]);
    if (key === this.answeredFor) return;
    this.answeredFor = key;
    this.answer.replaceChildren();
    const same = (text: string) => text.trim().toLowerCase().replace(/[.\s]+$/, "");
    const right = answers.some((answer) => same(answer) === same(output));
    const asked = answers.slice(0, 3).join(" / ");
    if (output) {
      const verdict = answers.length && right ? h("span", { class: "right-answer" }, "as asked ") : null;
      this.answer.append(h("span", { class: "said", title: output }, "wrote ", verdict, h("q", {}, output)), " ");
    }
    if (answers.length && !right) this.answer.append(h("span", { class: "said", title: asked }, "asked was ", h("q", {}, asked)), " ");
    if (interventions.length) this.answer.append(h("span", { class: "changed" }, interventions.join(" + ")));
  }

  /** The text that stands there after the step, for those who do not see the canvas. */
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

  /** What is shown, as data. */
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
