(() => {
  const search = document.getElementById("search");
  const only = document.getElementById("only");
  const status = document.getElementById("status");
  const index = document.getElementById("index");
  const links = new Map([...document.querySelectorAll("nav li a")].map((link) => [link.getAttribute("href").slice(1), link]));
  const text = (article, part) => article.querySelector(part)?.textContent ?? "";
  const ops = [...document.querySelectorAll("article")].map((article) => ({
    article,
    item: links.get(article.id).parentElement,
    out: article.classList.contains("out"),
    name: text(article, "h3 a").toLowerCase(),
    words: ["h3", ".doc", ".yaml", "dl"].map((part) => text(article, part)).join(" ").toLowerCase(),
  }));
  const narrow = matchMedia("(max-width: 50rem)");
  const fold = () => { index.open = !narrow.matches; };
  fold();
  narrow.addEventListener("change", fold);

  const filter = () => {
    const wanted = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    // Where a name fits, ops that only mention the word would hide it.
    const by_name = wanted.length > 0 && ops.some((op) => wanted.every((word) => op.name.includes(word)));
    for (const op of ops) {
      const where = by_name ? op.name : op.words;
      const fits = wanted.every((word) => where.includes(word)) && !(only.checked && op.out);
      op.article.hidden = op.item.hidden = !fits;
      shown += fits;
    }
    for (const group of document.querySelectorAll(".chapter, .family"))
      group.hidden = !group.querySelector("article:not([hidden]), li:not([hidden])");
    document.getElementById("none").hidden = shown > 0;
    const all = shown === ops.length;
    status.textContent = all ? `${shown} ops` : `${shown} of ${ops.length} ops${by_name ? ", by name" : ""}`;
  };
  let timer = 0;
  search.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => { filter(); scrollTo(0, 0); }, 60); });
  only.addEventListener("change", filter);

  const visible = () => [...links.values()].filter((link) => !link.parentElement.hidden);
  const move = (step) => {
    const all = visible();
    const next = all[all.indexOf(document.activeElement) + step];
    if (next) next.focus(); else if (step < 0) search.focus();
  };
  // A link to an op that the search has hidden shows all ops again.
  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target || !target.closest("[hidden]")) return;
    search.value = "";
    only.checked = false;
    filter();
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const in_list = document.activeElement.closest?.("nav li");
    if (event.key === "/" && document.activeElement !== search) {
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "Escape" && search.value !== "") {
      search.value = "";
      filter();
      search.focus();
    } else if (event.key === "ArrowDown" && (document.activeElement === search || in_list)) {
      event.preventDefault();
      index.open = true;
      move(1);
    } else if (event.key === "ArrowUp" && in_list) {
      event.preventDefault();
      move(-1);
    } else if (event.key === "Enter" && document.activeElement === search) {
      visible()[0]?.click();
    }
  });
})();
