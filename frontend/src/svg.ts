/** Pictures as SVG: the views draw on a `Pen`, which is a canvas on the screen and this in a file. */

export type Pen = Pick<
  CanvasRenderingContext2D,
  | "fillStyle" | "strokeStyle" | "lineWidth" | "lineCap" | "font" | "textAlign" | "textBaseline" | "globalAlpha" | "imageSmoothingEnabled"
  | "fillRect" | "strokeRect" | "fillText" | "drawImage" | "save" | "restore" | "translate"
  | "beginPath" | "moveTo" | "lineTo" | "bezierCurveTo" | "roundRect" | "fill" | "stroke"
> & { measureText(text: string): { width: number } };

/** What only a browser knows about a font: how wide a text is, and how far below a baseline the letters stand. */
export interface Ruler {
  width(text: string, font: string): number;
  drop(baseline: CanvasTextBaseline, font: string): number;
}

const ANCHORS: Partial<Record<CanvasTextAlign, string>> = { center: "middle", right: "end", end: "end" };

const n = (value: number): string => String(Math.round(value * 100) / 100);

/** Text for an SVG file; characters that XML forbids become the replacement character. */
export function escapeXml(text: string): string {
  return text
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd")
    .replace(/[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g, "\ufffd")
    .replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]!);
}

/** Draws what a canvas would draw, as elements. Texts keep their measured width whatever fonts the reader has. */
export class SvgPen implements Pen {
  fillStyle: CanvasRenderingContext2D["fillStyle"] = "#000";
  strokeStyle: CanvasRenderingContext2D["strokeStyle"] = "#000";
  lineWidth = 1;
  lineCap: CanvasLineCap = "butt";
  font = "10px sans-serif";
  textAlign: CanvasTextAlign = "start";
  textBaseline: CanvasTextBaseline = "alphabetic";
  globalAlpha = 1;
  imageSmoothingEnabled = true;
  private readonly parts: string[] = [];
  private readonly groups: number[] = [];
  private path = "";

  /** `family` is the font family of the file; texts in another name their own. */
  constructor(
    private readonly ruler: Ruler,
    private readonly family: string,
  ) {}

  file(width: number, height: number, title: string): string {
    const [w, h] = [Math.ceil(width), Math.ceil(height)];
    const head = `<svg xmlns="http://www.w3.org/2000/svg" width="${w}" height="${h}" viewBox="0 0 ${w} ${h}" font-family="${escapeXml(this.family)}">`;
    return `<?xml version="1.0" encoding="UTF-8"?>\n${head}\n<title>${escapeXml(title)}</title>\n${this.parts.join("\n")}\n</svg>\n`;
  }

  save(): void {
    this.groups.push(0);
  }

  translate(x: number, y: number): void {
    this.parts.push(`<g transform="translate(${n(x)} ${n(y)})">`);
    if (this.groups.length) this.groups[this.groups.length - 1]++;
  }

  restore(): void {
    for (let open = this.groups.pop() ?? 0; open > 0; open--) this.parts.push("</g>");
  }

  private add(tag: string, attributes: string, alpha = this.globalAlpha): void {
    this.parts.push(`<${tag} ${attributes}${alpha < 1 ? ` opacity="${n(alpha)}"` : ""}/>`);
  }

  private stroked(): string {
    const cap = this.lineCap === "butt" ? "" : ` stroke-linecap="${this.lineCap}"`;
    return `fill="none" stroke="${String(this.strokeStyle)}" stroke-width="${n(this.lineWidth)}"${cap}`;
  }

  fillRect(x: number, y: number, w: number, h: number): void {
    this.add("rect", `x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" fill="${String(this.fillStyle)}"`);
  }

  strokeRect(x: number, y: number, w: number, h: number): void {
    this.add("rect", `x="${n(x)}" y="${n(y)}" width="${n(w)}" height="${n(h)}" ${this.stroked()}`);
  }

  beginPath(): void {
    this.path = "";
  }

  moveTo(x: number, y: number): void {
    this.path += `M${n(x)} ${n(y)}`;
  }

  lineTo(x: number, y: number): void {
    this.path += `L${n(x)} ${n(y)}`;
  }

  bezierCurveTo(x1: number, y1: number, x2: number, y2: number, x: number, y: number): void {
    this.path += `C${n(x1)} ${n(y1)} ${n(x2)} ${n(y2)} ${n(x)} ${n(y)}`;
  }

  roundRect(x: number, y: number, w: number, h: number, radius?: number | DOMPointInit | (number | DOMPointInit)[]): void {
    const r = Math.min(Number(radius ?? 0), w / 2, h / 2);
    const corner = (dx: number, dy: number) => `a${n(r)} ${n(r)} 0 0 1 ${n(dx)} ${n(dy)}`;
    this.path += `M${n(x + r)} ${n(y)}h${n(w - 2 * r)}${corner(r, r)}v${n(h - 2 * r)}${corner(-r, r)}h${n(2 * r - w)}${corner(-r, -r)}v${n(2 * r - h)}${corner(r, -r)}z`;
  }

  fill(): void {
    this.add("path", `d="${this.path}" fill="${String(this.fillStyle)}"`);
  }

  stroke(): void {
    this.add("path", `d="${this.path}" ${this.stroked()}`);
  }

  measureText(text: string): { width: number } {
    return { width: this.ruler.width(text, this.font) };
  }

  fillText(text: string, x: number, y: number, most = Infinity): void {
    if (!text.trim()) return;
    const [, style = "", weight = "", size = "10", family = ""] = /^(italic )?(?:(\d+|bold) )?([\d.]+)px (.*)$/.exec(this.font) ?? [];
    const width = Math.min(most, this.ruler.width(text, this.font));
    const anchor = ANCHORS[this.textAlign];
    const parts = [
      `x="${n(x)}" y="${n(y + this.ruler.drop(this.textBaseline, this.font))}"`,
      `font-size="${size}"`,
      weight && `font-weight="${weight}"`,
      style && `font-style="${style.trim()}"`,
      family && family !== this.family && `font-family="${escapeXml(family)}"`,
      anchor && `text-anchor="${anchor}"`,
      `fill="${String(this.fillStyle)}"`,
      `textLength="${n(width)}" lengthAdjust="spacingAndGlyphs"`,
      this.globalAlpha < 1 && `opacity="${n(this.globalAlpha)}"`,
    ];
    this.parts.push(`<text ${parts.filter(Boolean).join(" ")} xml:space="preserve">${escapeXml(text)}</text>`);
  }

  /** A picture inside the picture, its cells with sharp edges. */
  drawImage(...given: [image: CanvasImageSource, ...numbers: number[]]): void {
    const [image, x, y, w, h] = given;
    const canvas = image as HTMLCanvasElement;
    this.add("image", `x="${n(x)}" y="${n(y)}" width="${n(w ?? canvas.width)}" height="${n(h ?? canvas.height)}" preserveAspectRatio="none" image-rendering="pixelated" href="${canvas.toDataURL()}"`);
  }
}

/** Measures with a canvas of the page. */
export function browserRuler(): Ruler {
  const context = document.createElement("canvas").getContext("2d")!;
  const drops = new Map<string, number>();
  const ascent = (baseline: CanvasTextBaseline): number => {
    context.textBaseline = baseline;
    return context.measureText("x").fontBoundingBoxAscent;
  };
  return {
    width(text, font) {
      context.font = font;
      return context.measureText(text).width;
    },
    drop(baseline, font) {
      const key = `${baseline}/${font}`;
      if (!drops.has(key)) {
        context.font = font;
        drops.set(key, ascent("alphabetic") - ascent(baseline));
      }
      return drops.get(key)!;
    },
  };
}
