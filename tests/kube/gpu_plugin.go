package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	gpuResource = "nvidia.com/gpu"
	gpuSocket   = "gpus.sock"
	gpuPoll     = 100 * time.Millisecond
)

// gpuPlugin tells the kubelet of devices that do not exist. A container sees which of them are its own in the
// environment, as with NVIDIA's plugin.
type gpuPlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	devices []*v1beta1.Device
}

func newGPUPluginCommand() *cobra.Command {
	var count int
	command := &cobra.Command{
		Use:  "gpu-plugin --count N",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			plugin := &gpuPlugin{}
			for id := range count {
				plugin.devices = append(plugin.devices, &v1beta1.Device{ID: fmt.Sprint(id), Health: v1beta1.Healthy})
			}
			// Each round lasts as long as one life of the kubelet.
			for command.Context().Err() == nil {
				if err := plugin.serve(command.Context()); err != nil {
					fmt.Fprintln(os.Stderr, err)
				}
				time.Sleep(gpuPoll)
			}
			return nil
		},
	}
	command.Flags().IntVar(&count, "count", 1, "number of GPUs on this node")
	return command
}

// serve offers the devices, registers, and returns when a new kubelet has removed the socket, as each does at its start.
func (p *gpuPlugin) serve(ctx context.Context) error {
	path := v1beta1.DevicePluginPath + gpuSocket
	if err := os.RemoveAll(path); err != nil {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	go server.Serve(listener)
	defer server.Stop()
	kubelet, err := grpc.NewClient("unix://"+v1beta1.KubeletSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer kubelet.Close()
	request := &v1beta1.RegisterRequest{Version: v1beta1.Version, Endpoint: gpuSocket, ResourceName: gpuResource}
	if _, err := v1beta1.NewRegistrationClient(kubelet).Register(ctx, request); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if _, err := os.Stat(path); err != nil {
			return nil
		}
		time.Sleep(gpuPoll)
	}
	return nil
}

func (p *gpuPlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (p *gpuPlugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	<-stream.Context().Done() // the devices never change
	return nil
}

func (p *gpuPlugin) Allocate(_ context.Context, request *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	response := &v1beta1.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		ids := strings.Join(container.DevicesIds, ",")
		environment := map[string]string{"NVIDIA_VISIBLE_DEVICES": ids, "CUDA_VISIBLE_DEVICES": ids}
		response.ContainerResponses = append(response.ContainerResponses, &v1beta1.ContainerAllocateResponse{Envs: environment})
	}
	return response, nil
}
