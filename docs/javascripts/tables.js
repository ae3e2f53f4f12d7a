// Long tables can be sorted by a click on a column, and on pages with several of them filtered by a text.
document$.subscribe(() => {
  const tables = [...document.querySelectorAll("article table:not([class])")].filter(t => t.rows.length > 8);
  for (const table of tables) {
    const body = table.tBodies[0];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      head.style.cursor = "pointer";
      head.title = "sort";
      let down = false;
      head.addEventListener("click", () => {
        down = !down;
        const key = row => row.cells[column].innerText;
        const order = (a, b) => key(a).localeCompare(key(b), undefined, { numeric: true });
        const number = (a, b) => parseFloat(key(a)) - parseFloat(key(b));
        const rows = [...body.rows];
        rows.sort(rows.every(row => !isNaN(parseFloat(key(row)))) ? number : order);
        body.append(...(down ? rows : rows.reverse()));
      });
    });
  }
  if (!["verdicts", "what-works"].some(name => location.pathname.endsWith(`${name}.html`))) return;
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "filter rows";
  box.setAttribute("aria-label", "filter rows");
  box.addEventListener("input", () => {
    for (const row of tables.flatMap(table => [...table.tBodies[0].rows]))
      row.hidden = !row.innerText.toLowerCase().includes(box.value.toLowerCase());
  });
  document.querySelector("article h2")?.before(box);
});
