/* Browsers start no worker from a page of the file system. The search then runs in a hidden frame in a worker's place. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const script = new URL(url, document.baseURI).href.replace(/&/g, "&amp;").replace(/"/g, "&quot;")
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.waiting = []
      window.addEventListener("message", ({ source, data }) => {
        if (source !== this.frame.contentWindow) return
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      })
      this.frame.addEventListener("load", () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(data => this.postMessage(data))
      })
      this.frame.srcdoc = `<script>
        var postMessage = data => parent.postMessage(data, "*")
        var importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script")
          script.src = url
          script.onload = done
          script.onerror = failed
          document.body.appendChild(script)
        })), Promise.resolve())
      <\/script><body><script src="${script}"><\/script>`
      document.body.appendChild(this.frame)
    }
    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() {
      this.frame.remove()
    }
  }
}
