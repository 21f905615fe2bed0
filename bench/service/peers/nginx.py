"""nginx with one worker: files read past the page cache, and written by WebDAV."""

from __future__ import annotations

from bench.service.processes import ServerProcess
from bench.service.server import HttpServer

# Without a master the process is its only worker. Buffers of half a MiB, since the default of 32 KiB would make many
# small reads of a large file; a body is kept in memory if it fits, else it goes to a file on the same disk.
CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log crit;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 3600;
    sendfile off;
    tcp_nodelay on;
    directio 512;
    directio_alignment 4096;
    output_buffers 2 512k;
    client_max_body_size 64m;
    client_body_buffer_size 64k;
    client_body_temp_path {folder}/bodies;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/files;
        dav_methods PUT;
        create_full_put_path on;
    }}
}}
"""


class Nginx(HttpServer):
    name = "nginx"

    def start(self) -> ServerProcess:
        (self.folder / "files").mkdir()
        file = self.folder / "nginx.conf"
        file.write_text(CONFIGURATION.format(folder=self.folder, port=self._port))
        process = ServerProcess(self.name, ["/usr/sbin/nginx", "-e", "stderr", "-c", str(file)], self.folder)
        process.wait_for_port(self._port)
        return process
