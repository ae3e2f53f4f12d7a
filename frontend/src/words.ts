/** How a token is written: every sign visible, nothing that could reorder or hide its neighbours. */

const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;
const LONGEST = 48;

export interface Word {
  text: string; // what is drawn
  gap: boolean; // a space stands before it
  breaks: number; // line ends in it
  faint: boolean; // a sign for something invisible, or a special token
}

const name = (character: string) => `\u27e8${character.codePointAt(0)!.toString(16)}\u27e9`;

/** A piece of text as a word to draw. `special`: the brackets around its name are left out. */
export function spell(piece: string, special = false): Word {
  if (special) return { text: clip(visible(piece.replace(/^<\|?|\|?>$/g, "") || piece)), gap: true, breaks: 0, faint: true };
  const breaks = (piece.match(/\n/g) ?? []).length;
  const body = piece.replace(/\r?\n/g, "\n");
  const trimmed = body.replace(/^[ \u00a0\u3000]+/, "");
  const gap = trimmed.length < body.length;
  if (trimmed === "") return { text: body === "" ? "\u2205" : "\u00b7", gap, breaks: 0, faint: true };
  if (breaks && trimmed.replace(/\n/g, "").trim() === "") return { text: "\u21b5".repeat(Math.min(breaks, 3)), gap, breaks, faint: true };
  return { text: clip(visible(trimmed.replace(/\n/g, "\u21b5"))), gap, breaks, faint: false };
}

function visible(text: string): string {
  const named = text.replace(INVISIBLE, name);
  return /^\p{M}/u.test(named) ? `\u25cc${named}` : named; // a mark by itself gets a circle to sit on
}

function clip(text: string): string {
  const characters = Array.from(text);
  return characters.length <= LONGEST ? text : characters.slice(0, LONGEST - 1).join("") + "\u2026";
}
