"use strict";
// Data is carried compressed; a click saves it as plain CSV. Without this script the link saves the compressed file.
const unpacked = async (address) => {
  const bytes = Uint8Array.from(atob(address.slice(address.indexOf(",") + 1)), (c) => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Blob([await new Response(plain).arrayBuffer()], { type: "text/csv" });
};
for (const link of document.querySelectorAll("a[data-csv]")) {
  if (!("DecompressionStream" in window)) break;
  link.addEventListener("click", async (event) => {
    event.preventDefault();
    const address = URL.createObjectURL(await unpacked(link.href));
    const saved = document.createElement("a");
    saved.href = address;
    saved.download = link.dataset.csv;
    saved.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  });
}
// The table of contents marks the section that is being read.
const entries = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const watcher = new IntersectionObserver(
  (seen) => {
    for (const { target, isIntersecting } of seen) {
      if (!isIntersecting) continue;
      for (const a of entries.values()) a.removeAttribute("aria-current");
      entries.get(target.id)?.setAttribute("aria-current", "true");
    }
  },
  { rootMargin: "-15% 0px -75% 0px" },
);
for (const id of entries.keys()) {
  const place = document.getElementById(id);
  if (place) watcher.observe(place);
}
// A link to a section unfolds it.
const unfold = () => {
  const place = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (const d of place?.querySelectorAll("details.more") ?? []) d.open = true;
};
addEventListener("hashchange", unfold);
unfold();
// What is folded on the screen is open on paper.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => (d.open = true)));
