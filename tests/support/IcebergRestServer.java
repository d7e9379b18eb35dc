import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.iceberg.inmemory.InMemoryCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/** Serves Iceberg's own REST catalog on a free port of 127.0.0.1, and prints that port. */
public final class IcebergRestServer {
    public static void main(String[] arguments) throws Exception {
        InMemoryCatalog catalog = new InMemoryCatalog();
        catalog.initialize("catalog", Map.of("warehouse", arguments[0]));
        ServletHolder servlet =
            new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog)));
        ServletContextHandler context = new ServletContextHandler();
        context.addServlet(servlet, "/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        server.setHandler(context);
        server.start();
        ServerConnector connector = (ServerConnector) server.getConnectors()[0];
        System.out.println("listens on port " + connector.getLocalPort());
        server.join();
    }
}
